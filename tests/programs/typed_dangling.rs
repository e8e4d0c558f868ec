//! A program that prints the true type of each of its boxes, as typed_truth.rs does: structs with empty vectors in a `BTreeMap`, and trees
//! of `Rc` whose roots have no parent (`Weak::new()`). The pointers of empty vectors and of such parents are numbers. A fifth is leaked.
//!
//!   typed_dangling COUNT SEED
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::rc::{Rc, Weak};

#[no_mangle]
pub static mut WORLD: *mut World = std::ptr::null_mut();

pub struct Note {
    pub texts: Vec<String>,
    pub next: Option<Box<Note>>,
    pub level: u32,
}

pub struct Group {
    pub title: String,
    pub members: Vec<u64>,
    pub owner: Option<Box<Note>>,
}

pub struct Node {
    pub name: String,
    pub children: Vec<Rc<RefCell<Node>>>,
    pub parent: Weak<RefCell<Node>>,
    pub note: Option<Box<Note>>,
}

pub struct User {
    pub groups: BTreeMap<u32, Box<Group>>,
    pub tree: Rc<RefCell<Node>>,
}

#[derive(Default)]
pub struct World {
    pub users: Vec<Box<User>>,
}

fn told<T>(value: T, name: &str) -> Box<T> {
    let made = Box::new(value);
    println!("{:x} box typed_dangling::{}", &*made as *const T as usize, name);
    made
}

fn note(number: u32) -> Box<Note> {
    let texts = (0..number % 3).map(|at| format!("text {} of note {}", at, number)).collect();
    let next = if number % 4 == 0 && number > 0 { Some(note(number / 4)) } else { None };
    told(Note { texts, next, level: number }, "Note")
}

fn node(depth: u32, parent: Weak<RefCell<Node>>) -> Rc<RefCell<Node>> {
    let note = if depth % 2 == 0 { Some(note(depth)) } else { None };
    let made = Rc::new(RefCell::new(Node { name: format!("node {}", depth), children: Vec::new(), parent, note }));
    let block = Rc::as_ptr(&made) as usize - 2 * std::mem::size_of::<usize>(); // RcInner begins with two counters.
    println!("{:x} rc alloc::rc::RcInner<core::cell::RefCell<typed_dangling::Node>>", block);
    for _ in 0..if depth > 0 { 3 } else { 0 } {
        let child = node(depth - 1, Rc::downgrade(&made));
        made.borrow_mut().children.push(child);
    }
    made
}

fn user(number: u32) -> Box<User> {
    let mut groups = BTreeMap::new();
    for at in 0..3 + number % 15 {
        let owner = if at % 2 == 0 { Some(note(at)) } else { None };
        let members = vec![number as u64; (at % 5) as usize];
        groups.insert(at, told(Group { title: format!("group {}", at), members, owner }, "Group"));
    }
    told(User { groups, tree: node(2, Weak::new()) }, "User")
}

fn main() {
    let count = std::env::args().nth(1).map_or(100, |word| word.parse().unwrap());
    let world = Box::leak(told(World::default(), "World"));
    for number in 0..count {
        let made = user(number);
        if number % 5 == 4 {
            std::mem::forget(made);
        } else {
            world.users.push(made);
        }
    }
    unsafe { WORLD = world };
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        let users = unsafe { (*std::hint::black_box(WORLD)).users.len() };
        std::thread::sleep(std::time::Duration::from_secs(1000 + users as u64));
    }
}
