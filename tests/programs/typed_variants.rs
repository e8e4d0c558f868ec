// A program that prints the true type of its own objects, as typed_truth.cpp does. Depending on the variant of an enum, one word refers to
// the buffer of a HashMap, to that of a Vec whose last elements were removed, or to a struct.
//
//   typed_variants COUNT SEED
#![allow(dead_code, static_mut_refs)]
use std::collections::HashMap;
use std::io::Write;

struct Item { number: u64, next: Option<Box<Item>> }
struct Group { number: u64, first: Box<Item>, others: Vec<Box<Item>> }
enum Content { Map(HashMap<u64, Box<Item>>), List(Vec<Box<Item>>), One(Box<Group>), Number(u64) }
enum Part { Map(HashMap<u64, Box<Item>>), One(Box<Group>), Number(u64) }
struct Holder { content: Content, part: Part, number: u64 }

static mut ALL: Vec<Box<Holder>> = Vec::new();

fn told<T>(made: Box<T>, name: &str) -> Box<T> { println!("{:x} reachable {}", &*made as *const T as usize, name); made }
fn item(number: u64) -> Box<Item> { told(Box::new(Item { number, next: None }), "typed_variants::Item") }
fn group(number: u64) -> Box<Group> { told(Box::new(Group { number, first: item(number), others: vec![item(1), item(2)] }), "typed_variants::Group") }
fn map() -> HashMap<u64, Box<Item>> { (0..3).map(|number| (number, item(number))).collect() }
fn list() -> Vec<Box<Item>> {
    let mut made: Vec<Box<Item>> = (0..2).map(item).collect();
    for _ in 0..2 { made.push(Box::new(Item { number: 7, next: None })); }
    made.truncate(2);
    made
}

fn main() {
    let count: u64 = std::env::args().nth(1).map_or(100, |text| text.parse().unwrap());
    let mut all = Vec::new();
    for number in 0..count {
        let content = match number % 4 { 0 => Content::Map(map()), 1 => Content::List(list()), 2 => Content::One(group(number)), _ => Content::Number(number) };
        let part = match number % 3 { 0 => Part::Map(map()), 1 => Part::One(group(number)), _ => Part::Number(number) };
        all.push(told(Box::new(Holder { content, part, number }), "typed_variants::Holder"));
    }
    unsafe { ALL = all; }
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop { std::thread::sleep(std::time::Duration::from_secs(1000)); }
}
