//! A program that prints the true type of each of its boxes, as typed_truth.c does. It has enums with a trait object in a variant, and
//! enums one word of which is a pointer to a different type, or no pointer, in each variant. A fifth of the orders is leaked.
//!
//!   typed_enums ORDERS SEED
use std::io::Write;
use std::rc::Rc;

static mut STATE: u64 = 1;
static mut LEAKED: bool = false;
static mut SHOP: *mut Shop = std::ptr::null_mut();

fn roll(n: u64) -> u64 {
    unsafe {
        STATE = STATE.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (STATE >> 33) % n
    }
}

fn told<T>(value: T, name: &str) -> Box<T> {
    let made = Box::new(value);
    let kind = if unsafe { LEAKED } { "leaked" } else { "reachable" };
    println!("{:x} {} typed_enums::{}", &*made as *const T as usize, kind, name);
    made
}

fn text() -> String {
    (0..8 + roll(30)).map(|_| (b'a' + roll(26) as u8) as char).collect()
}

pub struct Person {
    pub name: String,
    pub age: u8,
    pub spouse: Option<Box<Person>>,
}

pub struct Item {
    pub code: String,
    pub price: u64,
    pub parent: Option<Box<Item>>,
}

pub struct Line {
    pub item: Option<Box<Item>>,
    pub count: u32,
    pub note: Option<String>,
}

pub struct Voucher {
    pub code: Box<str>,
    pub left: u64,
}

pub enum Payment {
    Card { number: Box<[u8; 16]>, holder: Box<Person> },
    Cash(u64),
    Voucher(Rc<Voucher>),
    Split(Box<Payment>, Box<Payment>),
}

pub trait Fault {
    fn code(&self) -> u64;
}

pub struct Timeout {
    pub limit: u64,
    pub who: Box<Person>,
}

pub struct Refused {
    pub why: String,
    pub depth: u32,
}

impl Fault for Timeout {
    fn code(&self) -> u64 {
        self.limit
    }
}

impl Fault for Refused {
    fn code(&self) -> u64 {
        self.depth as u64
    }
}

pub enum Event {
    Made(u64),
    Moved { from: Box<Person>, to: Box<Person> },
    Failed(Box<dyn Fault>),
}

pub struct Order {
    pub id: u64,
    pub lines: Vec<Line>,
    pub payment: Payment,
    pub events: Vec<Box<Event>>,
    pub next: Option<Box<Order>>,
}

pub struct Shop {
    pub orders: Option<Box<Order>>,
}

fn person(depth: u64) -> Box<Person> {
    let spouse = if depth > 0 && roll(3) == 0 { Some(person(depth - 1)) } else { None };
    told(Person { name: text(), age: roll(90) as u8, spouse }, "Person")
}

fn item(depth: u64) -> Box<Item> {
    let parent = if depth > 0 && roll(2) == 0 { Some(item(depth - 1)) } else { None };
    told(Item { code: text(), price: roll(999), parent }, "Item")
}

fn payment(depth: u64) -> Payment {
    match roll(if depth > 0 { 4 } else { 3 }) {
        0 => Payment::Card { number: Box::new([49; 16]), holder: person(1) },
        1 => Payment::Cash(roll(999)),
        2 => Payment::Voucher(Rc::new(Voucher { code: text().into(), left: 3 })),
        _ => Payment::Split(told(payment(depth - 1), "Payment"), told(payment(depth - 1), "Payment")),
    }
}

fn fault() -> Box<dyn Fault> {
    if roll(2) == 0 {
        told(Timeout { limit: roll(999), who: person(1) }, "Timeout")
    } else {
        told(Refused { why: text(), depth: roll(9) as u32 }, "Refused")
    }
}

fn event() -> Box<Event> {
    let made = match roll(3) {
        0 => Event::Made(roll(9999)),
        1 => Event::Moved { from: person(0), to: person(0) },
        _ => Event::Failed(fault()),
    };
    told(made, "Event")
}

fn line() -> Line {
    let note = if roll(2) == 0 { Some(text()) } else { None };
    Line { item: if roll(4) > 0 { Some(item(2)) } else { None }, count: roll(9) as u32, note }
}

#[inline(never)]
fn order() {
    let lines = (0..1 + roll(4)).map(|_| line()).collect();
    let events = (0..4).map(|_| event()).collect();
    let mut made = told(Order { id: roll(99999), lines, payment: payment(2), events, next: None }, "Order");
    let shop = unsafe { &mut *SHOP };
    if unsafe { LEAKED } {
        std::mem::forget(made);
    } else {
        made.next = shop.orders.take();
        shop.orders = Some(made);
    }
}

#[inline(never)]
fn clear_stack() {
    let mut space = [1u8; 32768];
    std::hint::black_box(&mut space);
    space.fill(0);
    std::hint::black_box(&mut space);
}

fn main() {
    let words: Vec<u64> = std::env::args().skip(1).map(|word| word.parse().unwrap()).collect();
    unsafe {
        STATE = words[1];
        SHOP = Box::into_raw(told(Shop { orders: None }, "Shop"));
        for number in 0..words[0] {
            LEAKED = number % 5 == 4;
            order();
        }
    }
    clear_stack();
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::sleep(std::time::Duration::from_secs(1000));
    }
}
