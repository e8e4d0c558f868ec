//! A program that prints the true type of each of its boxes, as typed_truth.rs does: boxes in a `LinkedList`, and in a `BTreeMap` whose
//! keys are strings.
//!
//!   typed_lists COUNT SEED
use std::collections::{BTreeMap, LinkedList};
use std::io::Write;

static mut SERVER: *mut Server = std::ptr::null_mut();

pub struct Item {
    pub count: u64,
    pub next: Option<Box<Item>>,
    pub bytes: [u8; 16],
}

pub struct Place {
    pub points: Vec<(f64, f64)>,
    pub items: Option<Box<Item>>,
    pub number: u64,
}

#[derive(Default)]
pub struct Server {
    pub list: LinkedList<Box<Place>>,
    pub by_name: BTreeMap<String, Box<Item>>,
}

fn told<T>(value: T, name: &str) -> Box<T> {
    let made = Box::new(value);
    println!("{:x} reachable typed_lists::{}", &*made as *const T as usize, name);
    made
}

fn item(count: u64) -> Box<Item> {
    let next = if count % 3 == 0 { Some(item(count + 1)) } else { None };
    told(Item { count, next, bytes: [9; 16] }, "Item")
}

fn main() {
    let count = std::env::args().nth(1).map_or(500, |word| word.parse().unwrap());
    let server = Box::leak(told(Server::default(), "Server"));
    unsafe { SERVER = server };
    for number in 0..count {
        let points = (0..number % 5).map(|at| (at as f64, 0.5)).collect();
        server.list.push_back(told(Place { points, items: Some(item(number)), number }, "Place"));
        server.by_name.insert(format!("name {}", number * 7919 % 10007), item(number + 1));
    }
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
        std::hint::black_box(unsafe { SERVER });
    }
}
