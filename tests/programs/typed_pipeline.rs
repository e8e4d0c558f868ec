//! A program that prints the true type of its own objects, as typed_truth.rs does: a pipeline of records. Values are enums that share a word
//! with a vector; stages are trait objects in trait objects; jobs are futures, results and shared boards. A fifth of the workers is leaked.
//!
//!   typed_pipeline WORKERS SEED
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, RwLock};
static mut STATE: u64 = 1;
static mut LEAKED: bool = false;
static mut WORLD: *mut World = std::ptr::null_mut();
fn roll(n: u64) -> u64 { unsafe { STATE = STATE.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); (STATE >> 33) % n } }
fn say<T: ?Sized>(at: *const T, name: &str) { println!("{:x} {} {}", at as *const u8 as usize, if unsafe { LEAKED } { "leaked" } else { "reachable" }, name); }
fn told<T>(value: T, name: &str) -> Box<T> { let made = Box::new(value); say(&*made, &format!("typed_pipeline::{}", name)); made }
fn list<T>(of: &Vec<T>, name: &str) { say(of.as_ptr(), &if of.len() > 1 { format!("{}[]", name) } else { name.to_string() }); }
fn text() -> String { (0..3 + roll(30)).map(|_| (b'a' + roll(26) as u8) as char).collect() }
#[derive(Clone)] pub enum Json { Null, Bool(bool), Number(f64), Text(String), List(Vec<Json>), Object(Box<Members>) }
#[derive(Clone)] pub struct Members { pub names: Vec<String>, pub values: Vec<Json> }
pub struct Record { pub id: u64, pub json: Json, pub next: Option<Box<Record>>, pub source: Option<Rc<Source>> }
pub struct Source { pub path: String, pub seen: Cell<u64>, pub parent: RefCell<Weak<Source>>, pub inner: RefCell<Vec<Rc<Source>>> }
pub trait Stage { fn push(&mut self, r: &Record) -> u64; fn name(&self) -> String; }
pub struct Filter { pub pattern: String, pub passed: u64, pub next: Option<Box<dyn Stage>> }
pub struct Count { pub by: HashMap<String, u64>, pub top: BTreeSet<u64>, pub next: Option<Box<dyn Stage>> }
pub struct Split { pub left: Box<dyn Stage>, pub right: Box<dyn Stage>, pub turn: bool }
pub struct Sink { pub kept: VecDeque<Box<Record>>, pub limit: usize }
impl Stage for Filter { fn push(&mut self, r: &Record) -> u64 { self.passed += r.id; self.passed } fn name(&self) -> String { self.pattern.clone() } }
impl Stage for Count { fn push(&mut self, r: &Record) -> u64 { *self.by.entry(self.name()).or_insert(0) += r.id; 1 } fn name(&self) -> String { "c".into() } }
impl Stage for Split { fn push(&mut self, r: &Record) -> u64 { self.turn = !self.turn; if self.turn { self.left.push(r) } else { self.right.push(r) } } fn name(&self) -> String { self.left.name() } }
impl Stage for Sink { fn push(&mut self, r: &Record) -> u64 { r.id + self.limit as u64 } fn name(&self) -> String { "sink".into() } }
pub enum Job { Idle, Run { stage: Box<dyn Stage>, input: Vec<Box<Record>> }, Wait(Pin<Box<dyn Future<Output = u64>>>), Done(Result<Box<Report>, Box<Failure>>), Shared(Arc<Mutex<Board>>) }
pub struct Report { pub lines: Vec<String>, pub total: u64 }
pub struct Failure { pub reason: String, pub cause: Option<Box<Failure>> }
pub struct Board { pub posts: Vec<Option<Box<Report>>>, pub owner: Option<Arc<RwLock<Board>>>, pub queue: BinaryHeap<u64> }
pub struct Worker { pub job: Job, pub history: VecDeque<Job>, pub root: Rc<Source>, pub prev: Option<Box<Worker>>, pub hooks: Vec<Box<dyn FnMut(u64) -> u64>> }
pub struct World { pub workers: HashMap<u64, Box<Worker>>, pub boards: Vec<Arc<Mutex<Board>>>, pub records: Option<Box<Record>>, pub slots: Vec<Option<Rc<RefCell<Members>>>> }
fn json(d: u64) -> Json { match roll(if d > 0 { 6 } else { 4 }) { 0 => Json::Null, 1 => Json::Bool(true), 2 => Json::Number(roll(99) as f64 / 7.0), 3 => Json::Text(text()), 4 => { let v: Vec<Json> = (0..1 + roll(4)).map(|_| json(d - 1)).collect(); list(&v, "typed_pipeline::Json"); Json::List(v) } _ => Json::Object(told(members(d - 1), "Members")) } }
fn members(d: u64) -> Members { let n = 1 + roll(4); let v: Vec<Json> = (0..n).map(|_| json(d)).collect(); list(&v, "typed_pipeline::Json"); let names: Vec<String> = (0..n).map(|_| text()).collect(); list(&names, "alloc::string::String"); Members { names, values: v } }
fn source(d: u64) -> Rc<Source> { let s = Rc::new(Source { path: text(), seen: Cell::new(0), parent: RefCell::new(Weak::new()), inner: RefCell::new(vec![]) }); if d > 0 { for _ in 0..roll(4) { let k = source(d - 1); *k.parent.borrow_mut() = Rc::downgrade(&s); s.inner.borrow_mut().push(k); } } s }
fn record(d: u64, s: &Option<Rc<Source>>) -> Box<Record> { told(Record { id: roll(1 << 30), json: json(2), next: if d > 0 && roll(2) == 0 { Some(record(d - 1, s)) } else { None }, source: s.clone() }, "Record") }
fn stage(d: u64) -> Box<dyn Stage> { match roll(if d > 0 { 4 } else { 1 }) { 0 => { let n = roll(5); let mut kept = VecDeque::new(); for _ in 0..n { kept.push_back(record(1, &None)); } told(Sink { kept, limit: 9 }, "Sink") } 1 => told(Filter { pattern: text(), passed: 0, next: Some(stage(d - 1)) }, "Filter"), 2 => { let mut by = HashMap::new(); for _ in 0..roll(6) { by.insert(text(), roll(99)); } told(Count { by, top: (0..roll(9)).collect(), next: None }, "Count") } _ => told(Split { left: stage(d - 1), right: stage(d - 1), turn: false }, "Split") } }
fn failure(d: u64) -> Box<Failure> { told(Failure { reason: text(), cause: if d > 0 && roll(2) == 0 { Some(failure(d - 1)) } else { None } }, "Failure") }
fn report() -> Box<Report> { let lines: Vec<String> = (0..1 + roll(5)).map(|_| text()).collect(); list(&lines, "alloc::string::String"); told(Report { lines, total: roll(99) }, "Report") }
fn board(o: Option<Arc<RwLock<Board>>>) -> Board { let posts: Vec<Option<Box<Report>>> = (0..1 + roll(4)).map(|_| if roll(3) > 0 { Some(report()) } else { None }).collect(); Board { posts, owner: o, queue: (0..roll(6)).collect() } }
struct Yield(bool);
impl Future for Yield { type Output = (); fn poll(mut self: Pin<&mut Self>, _: &mut std::task::Context) -> std::task::Poll<()> { if self.0 { std::task::Poll::Ready(()) } else { self.0 = true; std::task::Poll::Pending } } }
async fn load(r: Box<Record>, name: String) -> u64 { let a = r.id; Yield(false).await; let f = failure(0); Yield(false).await; a + name.len() as u64 + f.reason.len() as u64 }
async fn both(r: Box<Report>, x: Box<Record>) -> u64 { let t = r.total; load(x, "x".into()).await + t + r.lines.len() as u64 }
fn poll(mut f: Pin<Box<dyn Future<Output = u64>>>) -> Pin<Box<dyn Future<Output = u64>>> { use std::task::*; fn no(_: *const ()) {} fn same(_: *const ()) -> RawWaker { RawWaker::new(std::ptr::null(), &T) } static T: RawWakerVTable = RawWakerVTable::new(same, no, no, no); let w = unsafe { Waker::from_raw(same(std::ptr::null())) }; let _ = f.as_mut().poll(&mut Context::from_waker(&w)); f }
fn job(s: &Rc<Source>) -> Job { match roll(6) { 0 => Job::Idle, 1 => Job::Run { stage: stage(2), input: (0..roll(4)).map(|_| record(0, &Some(s.clone()))).collect() }, 2 => Job::Wait(if roll(2) == 0 { poll(Box::pin(load(record(0, &None), text()))) } else { poll(Box::pin(both(report(), record(0, &None)))) }), 3 => Job::Done(Ok(report())), 4 => Job::Done(Err(failure(3))), _ => Job::Shared(Arc::new(Mutex::new(board(if roll(2) == 0 { Some(Arc::new(RwLock::new(board(None)))) } else { None })))) } }
fn worker(d: u64) -> Box<Worker> { let root = source(2); let mut hooks: Vec<Box<dyn FnMut(u64) -> u64>> = vec![]; for _ in 0..roll(3) { let t = text(); let r = root.clone(); hooks.push(Box::new(move |n| { r.seen.set(n); t.len() as u64 })); } let history = (0..roll(4)).map(|_| job(&root)).collect(); told(Worker { job: job(&root), history, prev: if d > 0 && roll(2) == 0 { Some(worker(d - 1)) } else { None }, root, hooks }, "Worker") }
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: u64 = args[1].parse().unwrap();
    unsafe { STATE = args[2].parse().unwrap(); }
    let mut world = Box::new(World { workers: HashMap::new(), boards: vec![], records: None, slots: vec![] });
    for at in 0..n {
        unsafe { LEAKED = at % 5 == 4; }
        let w = worker(2);
        if at % 5 == 4 { std::mem::forget(w); std::mem::forget(record(2, &None)); continue; }
        world.workers.insert(at, w);
        world.boards.push(Arc::new(Mutex::new(board(None))));
        let mut r = record(2, &None); let mut last = &mut r; while last.next.is_some() { last = last.next.as_mut().unwrap(); } last.next = world.records.take(); world.records = Some(r);
        world.slots.push(if roll(2) == 0 { Some(Rc::new(RefCell::new(members(1)))) } else { None });
    }
    unsafe { WORLD = Box::into_raw(world); }
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop { std::thread::sleep(std::time::Duration::from_secs(1000)); std::hint::black_box(unsafe { WORLD }); }
}
