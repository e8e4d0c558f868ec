//! A program that prints the true type of each of its boxes, as typed_truth.c does: vectors, deques and maps, some elements of which
//! were removed, enums, options, shared values and trait objects. A fifth is leaked.
//!
//!   typed_truth USERS SEED
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::Write;
use std::rc::Rc;
use std::sync::Arc;

static mut STATE: u64 = 1;
static mut LEAKED: bool = false;
static mut SERVER: *mut Server = std::ptr::null_mut();

fn roll(n: u64) -> u64 {
    unsafe {
        STATE = STATE.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (STATE >> 33) % n
    }
}

fn told<T>(value: T, name: &str) -> Box<T> {
    let made = Box::new(value);
    let kind = if unsafe { LEAKED } { "leaked" } else { "reachable" };
    println!("{:x} {} typed_truth::{}", &*made as *const T as usize, kind, name);
    made
}

pub struct User {
    pub name: String,
    pub id: u64,
    pub friends: Vec<*const User>,
    pub session: Option<Box<Session>>,
}

pub struct Session {
    pub token: [u8; 24],
    pub user: u64,
    pub log: Vec<Event>,
    pub next: Option<Box<Session>>,
}

pub enum Event {
    Login { at: u64, from: Box<Addr> },
    Message(Box<Msg>),
    Quit,
}

pub struct Addr {
    pub ip: [u8; 16],
    pub port: u16,
    pub host: Option<Box<Host>>,
}

pub struct Host {
    pub name: &'static str,
    pub hits: u64,
    pub parent: Option<Box<Host>>,
}

pub struct Msg {
    pub body: String,
    pub to: Rc<Room>,
}

pub struct Room {
    pub title: Box<Title>,
    pub members: RefCell<Vec<Rc<Room>>>,
    pub weight: f64,
}

pub struct Title {
    pub text: &'static str,
    pub lang: u32,
}

pub struct Tree {
    pub left: Option<Box<Tree>>,
    pub right: Option<Box<Tree>>,
    pub key: u64,
    pub value: Arc<Value>,
}

pub struct Value {
    pub a: u64,
    pub numbers: Box<[u32; 6]>,
    pub c: u64,
}

pub trait Shape {
    fn area(&self) -> f64;
}

pub struct Circle {
    pub radius: f64,
    pub tag: Box<Title>,
}

pub struct Square {
    pub side: f64,
    pub x: f64,
    pub tag: Box<Title>,
    pub more: Option<Box<Circle>>,
}

impl Shape for Circle {
    fn area(&self) -> f64 {
        self.radius * self.radius
    }
}

impl Shape for Square {
    fn area(&self) -> f64 {
        self.side * self.side
    }
}

#[derive(Default)]
pub struct Server {
    pub users: Vec<Box<User>>,
    pub by_id: HashMap<u64, Box<Host>>,
    pub seen: HashSet<u64>,
    pub rooms: Vec<Rc<Room>>,
    pub tree: Option<Box<Tree>>,
    pub shapes: Vec<Box<dyn Shape>>,
    pub queue: VecDeque<Box<Msg>>,
    pub index: BTreeMap<u64, Box<Addr>>,
}

fn title() -> Box<Title> {
    told(Title { text: "title", lang: roll(9) as u32 }, "Title")
}

fn host(depth: u64) -> Box<Host> {
    let parent = if depth > 0 { Some(host(depth - 1)) } else { None };
    told(Host { name: "host", hits: roll(100), parent }, "Host")
}

fn addr() -> Box<Addr> {
    let host = if roll(2) == 0 { Some(host(roll(3))) } else { None };
    told(Addr { ip: [7; 16], port: 80, host }, "Addr")
}

fn room() -> Rc<Room> {
    Rc::new(Room { title: title(), members: RefCell::new(Vec::new()), weight: 0.5 })
}

fn msg(room: &Rc<Room>) -> Box<Msg> {
    told(Msg { body: "x".repeat(5 + roll(40) as usize), to: room.clone() }, "Msg")
}

fn event(room: &Rc<Room>) -> Event {
    match roll(3) {
        0 => Event::Login { at: roll(1000), from: addr() },
        1 => Event::Message(msg(room)),
        _ => Event::Quit,
    }
}

fn session(depth: u64, room: &Rc<Room>) -> Box<Session> {
    let next = if depth > 0 { Some(session(depth - 1, room)) } else { None };
    let log = (0..roll(5)).map(|_| event(room)).collect();
    told(Session { token: [1; 24], user: roll(1 << 20), log, next }, "Session")
}

fn tree(depth: u64) -> Box<Tree> {
    let left = if depth > 0 { Some(tree(depth - 1)) } else { None };
    let right = if depth > 0 { Some(tree(depth - 1)) } else { None };
    let value = Arc::new(Value { a: 1, numbers: Box::new([3; 6]), c: 2 });
    told(Tree { left, right, key: roll(1 << 30), value }, "Tree")
}

fn circle() -> Box<Circle> {
    told(Circle { radius: 1.5, tag: title() }, "Circle")
}

fn square() -> Box<Square> {
    let more = if roll(2) == 0 { Some(circle()) } else { None };
    told(Square { side: 2.5, x: 1.0, tag: title(), more }, "Square")
}

fn user(room: &Rc<Room>) -> Box<User> {
    let session = if roll(3) > 0 { Some(session(roll(3), room)) } else { None };
    told(User { name: "u".repeat(12), id: roll(1 << 40), friends: Vec::new(), session }, "User")
}

/// Boxes that were removed from containers are leaked, so that each of them keeps its type.
fn fill(server: &mut Server, users: u64) {
    for number in 0..users {
        let room = room();
        if roll(2) == 0 {
            room.members.borrow_mut().push(room.clone());
        }
        server.users.push(user(&room));
        server.rooms.push(room.clone());
        server.by_id.insert(number, host(1));
        server.seen.insert(roll(1 << 50));
        if roll(2) == 0 {
            server.shapes.push(circle());
        } else {
            server.shapes.push(square());
        }
        server.queue.push_back(msg(&room));
        server.index.insert(roll(1 << 40), addr());
        let friend = &**server.users.last().unwrap() as *const User;
        server.users[roll(number + 1) as usize].friends.push(friend);
    }
    server.tree = Some(tree(7));
}

fn main() {
    let mut words = std::env::args().skip(1).map(|word| word.parse().unwrap());
    let users: u64 = words.next().unwrap_or(200);
    unsafe { STATE = words.next().unwrap_or(1) };
    let server = Box::leak(told(Server::default(), "Server"));
    fill(server, users);
    unsafe { SERVER = server };
    unsafe { LEAKED = true };
    for _ in 0..users / 4 {
        let room = room();
        std::mem::forget(user(&room));
        std::mem::forget(addr());
        std::mem::forget(square());
        std::mem::forget(tree(2));
        std::mem::forget(room);
    }
    // Slots that containers do not use any more have stale pointers.
    for number in 0..users / 20 {
        std::mem::forget(server.by_id.remove(&(number * 3)));
        std::mem::forget(server.queue.pop_front());
        std::mem::forget(server.shapes.pop());
    }
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
        std::hint::black_box(unsafe { SERVER });
    }
}
