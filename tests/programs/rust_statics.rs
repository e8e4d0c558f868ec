// Containers in statics, one of which was emptied, and leaked cycles of Rc and leaked vectors. The argument is the number of elements.
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, LinkedList};
use std::rc::Rc;
use std::sync::Mutex;
use std::{env, hint::black_box, io::Write, mem, thread, time::Duration};

struct Node {
    next: RefCell<Option<Rc<Node>>>,
    pad: [u64; 10],
}

static INDEX: Mutex<BTreeMap<u64, String>> = Mutex::new(BTreeMap::new());
static LIST: Mutex<LinkedList<[u64; 6]>> = Mutex::new(LinkedList::new());
static SESSIONS: Mutex<Option<HashMap<u64, Box<[u8; 100]>>>> = Mutex::new(None);
static BURST: Mutex<Option<HashMap<u64, [u64; 4]>>> = Mutex::new(None);

fn fill(count: u64) {
    let (mut sessions, mut burst) = (HashMap::new(), HashMap::new());
    for i in 0..count {
        INDEX.lock().unwrap().insert(i * 7919 % 1_000_003, format!("document number {i} of the index"));
        LIST.lock().unwrap().push_back([i; 6]);
        sessions.insert(i, Box::new([1u8; 100]));
        burst.insert(i, [i; 4]);
    }
    burst.clear();
    *SESSIONS.lock().unwrap() = Some(sessions);
    *BURST.lock().unwrap() = Some(burst);
}

fn lose(count: u64) {
    for i in 0..count {
        let first = Rc::new(Node { next: RefCell::new(None), pad: [i; 10] });
        let second = Rc::new(Node { next: RefCell::new(Some(first.clone())), pad: [i; 10] });
        black_box(second.pad);
        *first.next.borrow_mut() = Some(second);
        mem::forget(black_box(vec![0xabu8; 700]));
    }
}

fn main() {
    let count: u64 = env::args().nth(1).unwrap().parse().unwrap();
    fill(count);
    thread::spawn(|| lose(500)).join().unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    thread::sleep(Duration::from_secs(3600));
}
