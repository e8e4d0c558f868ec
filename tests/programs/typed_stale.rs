//! A program that prints the true type of each of its boxes, as typed_truth.rs does. The elements of vectors that are not in use contain
//! addresses of boxes. So does the padding of leaked addresses, but not that of others. A map is larger than 64 KiB.
//!
//!   typed_stale COUNT SEED
use std::collections::HashMap;
use std::io::Write;

static mut LEAKED: bool = false;
static mut SERVER: *mut Server = std::ptr::null_mut();

pub enum Event {
    Login { at: u64, from: Box<Addr> },
    Moved { seen: Box<Host>, from: Box<Addr> },
    Quit,
}

pub struct Addr {
    pub ip: [u8; 16],
    pub host: Option<Box<Host>>,
    pub port: u16,
}

pub struct Host {
    pub name: &'static str,
    pub hits: u64,
    pub parent: Option<Box<Host>>,
}

#[derive(Default)]
pub struct Server {
    pub logs: Vec<Vec<Event>>,
    pub addresses: Vec<Box<Addr>>,
    pub by_id: HashMap<u64, Box<Host>>,
}

fn told<T>(value: T, name: &str) -> Box<T> {
    let made = Box::new(value);
    let kind = if unsafe { LEAKED } { "leaked" } else { "reachable" };
    println!("{:x} {} typed_stale::{}", &*made as *const T as usize, kind, name);
    made
}

fn host(hits: u64) -> Box<Host> {
    let parent = if hits % 3 == 0 { Some(host(hits + 1)) } else { None };
    told(Host { name: "host", hits, parent }, "Host")
}

/// The last word of a leaked address, which is the port and its padding, is the address of `stale`.
fn addr(number: u64, stale: *const Host) -> Box<Addr> {
    let host = if number % 4 == 0 { None } else { Some(host(number)) };
    let mut made = told(Addr { ip: [7; 16], host, port: 0 }, "Addr");
    unsafe { (&mut *made as *mut Addr as *mut *const Host).add(3).write(if LEAKED { stale } else { std::ptr::null() }) };
    made
}

fn event(number: u64, stale: *const Host) -> Event {
    match number % 3 {
        0 => Event::Login { at: number << 20, from: addr(number, stale) },
        1 => Event::Moved { seen: host(number), from: addr(number, stale) },
        _ => Event::Quit,
    }
}

/// A vector with two elements in use; the others are full of addresses and numbers.
fn log(number: u64, stale: *const Host) -> Vec<Event> {
    let mut made = Vec::with_capacity(4);
    for at in 0..12 {
        unsafe { (made.as_mut_ptr() as *mut u64).add(at).write(if at % 5 == 1 { 1 << 40 } else { stale as u64 }) };
    }
    made.push(event(number, stale));
    made.push(event(number + 1, stale));
    made
}

fn main() {
    let count = std::env::args().nth(1).map_or(500, |word| word.parse().unwrap());
    let server = Box::leak(told(Server::default(), "Server"));
    unsafe { SERVER = server };
    for number in 0..3000 {
        server.by_id.insert(number, host(number));
    }
    let stale = &**server.by_id.get(&1).unwrap() as *const Host;
    for number in 0..count {
        server.logs.push(log(number, stale));
        server.addresses.push(addr(number, stale));
    }
    unsafe { LEAKED = true };
    for number in 0..count {
        std::mem::forget(addr(number, stale));
        std::mem::forget(log(number, stale));
    }
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
        std::hint::black_box(unsafe { SERVER });
    }
}
