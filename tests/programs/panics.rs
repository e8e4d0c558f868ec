// Panics in the way its argument names; Rust prints the message and its place, which are the truth.
use std::collections::HashMap;

struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        panic!("the second of two")
    }
}

#[inline(never)]
fn parse(word: &str) -> u32 {
    match word {
        "index" => {
            let v: Vec<u32> = std::env::args().map(|a| a.len() as u32).collect();
            v[v.len() + 7]
        }
        "expect" => {
            let m: HashMap<String, u32> = HashMap::new();
            *m.get(word).expect("the route is in the table")
        }
        "format" => panic!("no route to host {}", word.len()),
        "static" => panic!("a plain text"),
        "unwrap" => {
            let r: Result<u32, std::num::ParseIntError> = "x1".parse::<u32>();
            r.unwrap()
        }
        "long" => panic!("{}", "long ".repeat(200)),
        "memory" => std::hint::black_box(Vec::<u8>::with_capacity(isize::MAX as usize)).len() as u32,
        "drop" => {
            let _last = Last;
            panic!("the first of two")
        }
        "callback" => call_back(word.len()), "deep" => recurse(1, &[0; 32]), "show" => show(),
        _ => 1,
    }
}

/// Cannot unwind: the library panics a second time.
#[inline(never)]
extern "C" fn call_back(length: usize) -> u32 {
    panic!("the callback got {} bytes", length)
}

fn main() {
    let word = std::env::args().nth(1).unwrap();
    if std::env::args().nth(2).is_some() {
        // A thread panics first, and is caught.
        let _ = std::thread::spawn(|| parse("expect")).join();
    }
    println!("{}", parse(&word));
}

/// Overflows the stack.
#[inline(never)]
fn recurse(count: u32, outer: &[u32; 32]) -> u32 {
    let mut own = [count; 32];
    own[(count % 32) as usize] = outer[(count % 7) as usize];
    if count == u32::MAX { 0 } else { recurse(count + 1, &own) + own[(count % 32) as usize] }
}

/// A function of Rust's library reads the address 16.
#[inline(never)]
fn show() -> u32 {
    let text = format!("{}", unsafe { &*std::hint::black_box(16 as *const u32) });
    text.len() as u32
}
