//! A program that prints the true type of each of its blocks, as typed_truth.rs does. Executors have queues of tasks, as those of
//! asynchronous runtimes do: a task owns a boxed future with further bounds, which may be an async block. Jobs own boxed closures. A fifth
//! of the executors is leaked. Buffers of queues and maps are not printed.
//!
//!   typed_queue EXECUTORS SEED
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Context, Poll};

pub struct Item {
    id: u64,
    next: Option<Box<Item>>,
    price: f64,
}
pub enum Shape {
    Circle(Box<Item>),
    Square(u64, Box<Item>),
    Named(String),
    Empty,
}
pub struct Job {
    id: u64,
    run: Box<dyn Fn(u64) -> u64 + Send>,
    item: Box<Item>,
}
pub struct Wait {
    item: Box<Item>,
    polled: u32,
}
impl Future for Wait {
    type Output = u64;
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<u64> {
        if self.polled > 9 { Poll::Ready(self.item.id) } else { Poll::Pending }
    }
}
type Boxed = Pin<Box<dyn Future<Output = u64> + Send>>;
pub struct Task {
    future: Mutex<Option<Boxed>>,
    executor: Mutex<Option<Arc<Executor>>>,
    id: u64,
}
pub struct Executor {
    tasks: Mutex<VecDeque<Arc<Task>>>,
    jobs: Mutex<VecDeque<Job>>,
    cache: RwLock<HashMap<u64, Arc<Item>>>,
    names: Mutex<BTreeMap<String, Box<Item>>>,
    shapes: Vec<Shape>,
}
fn say(address: usize, name: &str) {
    println!("{:x} block {}", address, name);
}
fn told<T>(one: Box<T>) -> Box<T> {
    say(&*one as *const T as usize, std::any::type_name::<T>());
    one
}
fn shared<T>(one: Arc<T>) -> Arc<T> {
    say(Arc::as_ptr(&one) as *const u8 as usize - 16, &format!("alloc::sync::ArcInner<{}>", std::any::type_name::<T>()));
    one
}
fn item(id: u64) -> Box<Item> {
    let next = if id % 3 == 0 { Some(told(Box::new(Item { id, next: None, price: 2.0 }))) } else { None };
    told(Box::new(Item { id, next, price: id as f64 }))
}
fn future(number: u64) -> Boxed {
    if number % 2 == 0 {
        return Box::into_pin(told::<Wait>(Box::new(Wait { item: item(number), polled: 0 })));
    }
    let (first, name) = (item(number), format!("the name of task {}", number));
    let made: Boxed = Box::pin(async move {
        let found = Wait { item: first, polled: 1 }.await;
        found + name.len() as u64
    });
    say(&*made as *const _ as *const u8 as usize, "typed_queue::future::{async_block_env#0}");
    made
}
fn closure(number: u64) -> Box<dyn Fn(u64) -> u64 + Send> {
    let owned = item(number);
    let made: Box<dyn Fn(u64) -> u64 + Send> = Box::new(move |by| owned.id * by);
    say(&*made as *const _ as *const u8 as usize, "typed_queue::closure::{closure_env#0}");
    made
}
fn executor(number: u64) -> Arc<Executor> {
    let shapes = vec![Shape::Circle(item(1)), Shape::Square(4, item(2)), Shape::Named("a name of a shape".into()), Shape::Empty];
    say(shapes.as_ptr() as usize, "typed_queue::Shape[4]");
    let made = shared(Arc::new(Executor {
        tasks: Mutex::new(VecDeque::new()),
        jobs: Mutex::new(VecDeque::new()),
        cache: RwLock::new(HashMap::new()),
        names: Mutex::new(BTreeMap::new()),
        shapes,
    }));
    for id in 0..5 {
        let task = shared(Arc::new(Task { future: Mutex::new(Some(future(id))), executor: Mutex::new(None), id }));
        *task.executor.lock().unwrap() = Some(made.clone());
        made.tasks.lock().unwrap().push_back(task);
        made.jobs.lock().unwrap().push_back(Job { id, run: closure(id), item: item(number) });
        made.cache.write().unwrap().insert(id, shared(Arc::new(Item { id, next: Some(item(id)), price: 0.5 })));
        let value = item(id);
        made.names.lock().unwrap().insert(format!("the key of item {}", id), value);
    }
    made
}
static KEPT: Mutex<Vec<Arc<Executor>>> = Mutex::new(Vec::new());
fn main() {
    let wanted: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    for number in 0..wanted {
        let made = executor(number);
        if number % 5 != 0 {
            KEPT.lock().unwrap().push(made);
        } else {
            std::mem::forget(made);
        }
    }
    println!("ready");
    std::io::stdout().flush().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3600));
    let kept = KEPT.lock().unwrap();
    println!("{}", kept.iter().map(|one| one.shapes.len() as u64 + one.tasks.lock().unwrap().iter().map(|task| task.id).sum::<u64>()).sum::<u64>());
    println!("{}", kept.iter().map(|one| one.jobs.lock().unwrap().iter().map(|job| (job.run)(job.id) + job.item.price as u64).sum::<u64>()).sum::<u64>());
}
