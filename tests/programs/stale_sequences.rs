// Vecs, VecDeques and BTreeMaps in variables and in blocks, with slots outside their elements that still hold pointers to blocks; and
// structures whose slots are in use. Prints "lost ADDRESS" for each block that only such a slot refers to, "held ADDRESS" for each that a
// container has, "ready", and waits.
use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::mem::forget;
use std::sync::{Arc, Mutex, OnceLock};

pub struct Order {
    pub words: [u64; 25],
}

/// Addresses, complemented, so that they hold nothing; and whether the block is lost.
static NOTED: Mutex<Vec<(usize, bool)>> = Mutex::new(Vec::new());

#[inline(never)]
fn made(lost: bool) -> Box<Order> {
    let made = Box::new(Order { words: [7; 25] });
    NOTED.lock().unwrap().push((!(&*made as *const Order as usize), lost));
    made
}

pub struct App {
    pub number: u64,
    pub items: Vec<Box<Order>>,
    pub waiting: VecDeque<(u64, Box<Order>)>,
    pub maybe: Option<Box<Shelf>>,
}
pub struct Shelf {
    pub number: u64,
    pub items: Vec<Box<Order>>,
    pub numbers: BTreeMap<u64, Box<Order>>,
}
/// A Vec that an iterator takes elements out of, which owns the rest.
pub struct Draining {
    pub number: u64,
    pub items: Vec<Box<Order>>,
    pub waiting: VecDeque<Box<Order>>,
}
/// Looks like a VecDeque: a capacity, a pointer, and two positions.
pub struct Ring {
    pub capacity: usize,
    pub slots: *mut Box<Order>,
    pub first: usize,
    pub behind: usize,
}

pub static WAITING: Mutex<VecDeque<Box<Order>>> = Mutex::new(VecDeque::new());
pub static ITEMS: Mutex<Vec<Box<Order>>> = Mutex::new(Vec::new());
pub static APP: OnceLock<Box<Mutex<App>>> = OnceLock::new();
pub static SHARED: OnceLock<Arc<Mutex<App>>> = OnceLock::new();
pub static APPS: Mutex<Vec<App>> = Mutex::new(Vec::new());
pub static DRAINING: OnceLock<Box<Mutex<Draining>>> = OnceLock::new();
pub static DRAINED: Mutex<VecDeque<Box<Order>>> = Mutex::new(VecDeque::new());
pub static FIRST: Mutex<Vec<Box<Order>>> = Mutex::new(Vec::new());
pub static mut RINGS: Option<Box<Ring>> = None;

#[inline(never)]
fn shorten(items: &mut Vec<Box<Order>>) {
    for number in 0..20 {
        items.push(made(number >= 5));
    }
    for _ in 0..15 {
        forget(items.pop());
    }
}

/// A queue of 64 places, whose 12 elements are in the middle or at both ends.
#[inline(never)]
fn turn(waiting: &mut VecDeque<(u64, Box<Order>)>, first: usize) {
    for number in 0..64 {
        waiting.push_back((5, made(number < first || number >= first + 12)));
    }
    for _ in 0..first {
        forget(waiting.pop_front());
    }
    while waiting.len() > 12 {
        forget(waiting.pop_back());
    }
}

#[inline(never)]
fn app(first: usize) -> App {
    let (items, waiting) = (Vec::with_capacity(30), VecDeque::with_capacity(64));
    let mut app = App { number: 3, items, waiting, maybe: None };
    shorten(&mut app.items);
    turn(&mut app.waiting, first);
    let mut shelf = Box::new(Shelf { number: 3, items: Vec::with_capacity(30), numbers: BTreeMap::new() });
    shorten(&mut shelf.items);
    app.maybe = Some(shelf);
    app
}

/// Last of all: nothing else gets the memory of nodes that are freed, which still refers to blocks.
#[inline(never)]
fn fill_maps() {
    let mut apps = APPS.lock().unwrap();
    let (mut own, mut shared) = (APP.get().unwrap().lock().unwrap(), SHARED.get().unwrap().lock().unwrap());
    for app in apps.iter_mut().chain([&mut *own, &mut *shared]) {
        let numbers = &mut app.maybe.as_mut().unwrap().numbers;
        for number in 0..1000 {
            numbers.insert(number, made(number >= 400));
        }
    }
    for app in apps.iter_mut().chain([&mut *own, &mut *shared]) {
        for number in 400..1000 {
            forget(app.maybe.as_mut().unwrap().numbers.remove(&number));
        }
    }
}

#[inline(never)]
fn fill() {
    {
        let mut waiting = WAITING.lock().unwrap();
        for number in 0..50 {
            waiting.push_back(made(number < 30));
        }
        for _ in 0..30 {
            forget(waiting.pop_front());
        }
        for _ in 0..20 {
            waiting.push_back(made(false)); // beyond the end of the storage: at its beginning
        }
    }
    shorten(&mut ITEMS.lock().unwrap());
    APP.set(Box::new(Mutex::new(app(30)))).ok();
    SHARED.set(Arc::new(Mutex::new(app(60)))).ok();
    for first in [0, 20, 52] {
        APPS.lock().unwrap().push(app(first));
    }
    let mut slots: Vec<Box<Order>> = (0..17).map(|_| made(false)).collect();
    unsafe { RINGS = Some(Box::new(Ring { capacity: 17, slots: slots.as_mut_ptr(), first: 12, behind: 2 })) };
    forget(slots);
    let some = || (0..17).map(|_| made(false));
    DRAINING.set(Box::new(Mutex::new(Draining { number: 3, items: some().collect(), waiting: some().collect() }))).ok();
    DRAINED.lock().unwrap().extend(some());
    fill_maps();
    FIRST.lock().unwrap().push(made(false)); // the last address that is printed stays in a register
}

#[inline(never)]
fn wipe() {
    let mut space = [0u8; 65536];
    std::hint::black_box(&mut space);
}

#[inline(never)]
fn park(items: &mut dyn Iterator<Item = Box<Order>>, others: &mut dyn Iterator<Item = Box<Order>>, more: &mut dyn Iterator<Item = Box<Order>>) {
    for one in [items.next(), others.next(), more.next()] {
        FIRST.lock().unwrap().extend(one); // taken out, and kept
    }
    let out = NOTED.lock().unwrap();
    let mut text = String::new();
    for (address, lost) in out.iter() {
        text += &format!("{} {:#x}\n", if *lost { "lost" } else { "held" }, !address);
    }
    print!("{text}ready\n");
    std::io::stdout().flush().unwrap();
    let mut byte = [0];
    loop {
        if std::io::stdin().read(&mut byte).is_err() || byte[0] == b'q' {
            break;
        }
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }
}

fn main() {
    NOTED.lock().unwrap().reserve(20000);
    std::thread::spawn(fill).join().unwrap();
    wipe();
    let mut draining = DRAINING.get().unwrap().lock().unwrap();
    let mut drained = DRAINED.lock().unwrap();
    let Draining { items, waiting, .. } = &mut *draining;
    park(&mut items.drain(..), &mut waiting.drain(..), &mut drained.drain(..));
    let app = APP.get().unwrap().lock().unwrap();
    println!("{} {}", app.number, app.maybe.as_ref().unwrap().number + SHARED.get().unwrap().lock().unwrap().number);
}
