//! Hash tables of std in every place that can hold one, beside other containers. Prints the number of tables on the heap and of lost
//! boxes, then "ready", and waits.
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hint::black_box;
use std::io::Write;
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::thread;

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Wide([u8; 64]);

struct Everything {
    sizes: Vec<HashMap<u32, Box<u64>>>, // 1 to 130 entries each
    bytes: HashSet<u8>,
    threes: HashMap<[u8; 3], u8>,
    big: HashMap<u128, Box<[u8; 40]>>,
    wide: HashMap<u16, Wide>,
    texts: HashMap<String, Vec<String>>,
    nested: HashMap<u32, HashMap<u32, HashMap<String, Box<u64>>>>,
    shared: Arc<Mutex<HashMap<u64, Arc<String>>>>,
    removed: HashMap<u64, Box<u64>>,
    reserved: HashMap<u64, Box<u64>>,
    cleared: HashMap<u64, Box<u64>>,
    shrunk: HashMap<u64, Box<u64>>,
    units: HashSet<()>,
    none: HashMap<u64, Box<u64>>,
    tree: BTreeMap<String, BTreeMap<u32, Box<u64>>>,
    queue: VecDeque<Box<[u8; 30]>>,
    views: Vec<&'static str>, // into the middle of a text that `whole` owns
    whole: &'static str,
}

static ALL: Mutex<Option<Everything>> = Mutex::new(None);
static TABLES: AtomicUsize = AtomicUsize::new(0);
const NOTHING: AtomicPtr<HashMap<u32, Box<u64>>> = AtomicPtr::new(std::ptr::null_mut());
static RAW: [AtomicPtr<HashMap<u32, Box<u64>>>; 3] = [NOTHING; 3]; // values of Arcs

thread_local! {
    static LOCAL: RefCell<HashMap<u32, Box<u64>>> = RefCell::new(HashMap::new());
}

fn table(count: u32) -> HashMap<u32, Box<u64>> {
    TABLES.fetch_add(1, Ordering::Relaxed);
    (0..count).map(|i| (i, Box::new(i as u64))).collect()
}

fn longs(count: u64) -> HashMap<u64, Box<u64>> {
    TABLES.fetch_add(1, Ordering::Relaxed);
    (0..count).map(|i| (i * 7919, Box::new(i))).collect()
}

fn everything() -> Everything {
    let mut nested = HashMap::new();
    for i in 0..60u32 {
        let mut inner = HashMap::new();
        for j in 0..5u32 {
            inner.insert(j, (0..4u64).map(|k| (format!("key {i} {j} {k}"), Box::new(k))).collect());
        }
        nested.insert(i, inner);
    }
    TABLES.fetch_add(1 + 60 + 300, Ordering::Relaxed);
    let mut removed = longs(3000);
    removed.retain(|key, _| key % 3 == 0);
    let mut reserved = HashMap::with_capacity(10_000);
    reserved.insert(1, Box::new(1));
    let mut cleared = longs(500);
    cleared.clear();
    let mut shrunk = longs(500);
    shrunk.retain(|_, value| **value < 3);
    shrunk.shrink_to_fit();
    let whole: &'static str = Box::leak("a text of many words ".repeat(200).into_boxed_str());
    TABLES.fetch_add(7, Ordering::Relaxed); // bytes, threes, big, wide, texts, shared, reserved
    Everything {
        sizes: (1..=130).map(table).collect(),
        bytes: (0..200).collect(),
        threes: (0..100).map(|i| ([i, 1, 2], i)).collect(),
        big: (0..2000).map(|i| (i, Box::new([1; 40]))).collect(),
        wide: (0..50).map(|i| (i, Wide([7; 64]))).collect(),
        texts: (0..3000).map(|i| (format!("name {i}"), vec![format!("first {i}"), format!("second {i}")])).collect(),
        nested,
        shared: Arc::new(Mutex::new((0..300).map(|i| (i, Arc::new(format!("shared {i}")))).collect())),
        removed,
        reserved,
        cleared,
        shrunk,
        units: [()].into_iter().collect(),
        none: HashMap::new(),
        tree: (0..400).map(|i| (format!("branch {i}"), (0..9).map(|j| (j, Box::new(j as u64))).collect())).collect(),
        queue: (0..300).map(|_| Box::new([5; 30])).collect(),
        views: whole.split(' ').collect(),
        whole,
    }
}

fn main() {
    *ALL.lock().unwrap() = Some(everything());
    let (sender, receiver) = mpsc::channel::<()>();
    let (started, waiting) = mpsc::channel();
    let receiver = Arc::new(Mutex::new(receiver));
    for number in 0..3 {
        let (receiver, started) = (receiver.clone(), started.clone());
        thread::spawn(move || {
            LOCAL.with(|local| *local.borrow_mut() = table(40));
            let own = Rc::new(RefCell::new(table(50))); // on the stack
            RAW[number].store(Arc::into_raw(Arc::new(table(60))) as *mut _, Ordering::Relaxed);
            started.send(()).unwrap();
            let _ = receiver.lock().map(|receiver| receiver.recv());
            black_box(&own);
        });
    }
    for _ in 0..3 {
        waiting.recv().unwrap();
    }
    let lost = 500;
    thread::spawn(move || {
        for i in 0..lost {
            black_box(Box::leak(Box::new([i as u64; 20])));
        }
    })
    .join()
    .unwrap();
    println!("{} {}", TABLES.load(Ordering::Relaxed), lost);
    println!("ready");
    std::io::stdout().flush().unwrap();
    let all = ALL.lock().unwrap();
    let every = all.as_ref().unwrap();
    black_box((&every.sizes, &every.bytes, &every.threes, &every.big, &every.wide, &every.texts, &every.nested, &every.shared));
    black_box((&every.removed, &every.reserved, &every.cleared, &every.shrunk, &every.units, &every.none, &every.tree));
    black_box((&every.queue, &every.views, every.whole, every.wide.values().map(|wide| wide.0[0]).max()));
    drop(all);
    std::mem::forget(sender); // the threads wait for ever
    loop {
        thread::park();
    }
}
