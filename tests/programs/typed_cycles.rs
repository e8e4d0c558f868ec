//! A program that leaks cycles of Rc and Arc, and blocks that only resemble such boxes. It prints the true type of each block.
//!
//!   typed_cycles CYCLES SEED
use std::cell::RefCell;
use std::io::Write;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex};

const COUNTS: usize = 2 * std::mem::size_of::<usize>(); // RcInner and ArcInner begin with two counters.

pub struct Node {
    pub name: String,
    pub next: RefCell<Option<Rc<Node>>>,
    pub data: [u64; 8],
}

pub struct Conn {
    pub id: u64,
    pub peer: Mutex<Option<Arc<Conn>>>,
    pub buffer: Vec<u8>,
}

pub struct Tree {
    pub value: u32,
    pub parent: Option<Rc<RefCell<Tree>>>,
    pub children: Vec<Rc<RefCell<Tree>>>,
    pub observer: Option<Weak<RefCell<Tree>>>,
}

fn print<T>(place: *const T, name: &str) {
    println!("{:x} leaked {}", place as usize - COUNTS, name);
}

#[inline(never)]
fn leak(cycles: u64) {
    for i in 0..cycles {
        let one = Rc::new(Node { name: format!("node {}", i), next: RefCell::new(None), data: [i; 8] });
        let other = Rc::new(Node { name: format!("peer {}", i), next: RefCell::new(Some(one.clone())), data: [i; 8] });
        print(Rc::as_ptr(&one), "alloc::rc::RcInner<typed_cycles::Node>");
        print(Rc::as_ptr(&other), "alloc::rc::RcInner<typed_cycles::Node>");
        *one.next.borrow_mut() = Some(other);
        let conn = Arc::new(Conn { id: i, peer: Mutex::new(None), buffer: vec![1; 300] });
        print(Arc::as_ptr(&conn), "alloc::sync::ArcInner<typed_cycles::Conn>");
        *conn.peer.lock().unwrap() = Some(conn.clone());
        let root = Rc::new(RefCell::new(Tree { value: 7, parent: None, children: vec![], observer: None }));
        for at in 0..3 {
            let child = Rc::new(RefCell::new(Tree { value: at, parent: Some(root.clone()), children: vec![], observer: None }));
            print(Rc::as_ptr(&child), "alloc::rc::RcInner<core::cell::RefCell<typed_cycles::Tree>>");
            root.borrow_mut().children.push(child);
        }
        print(Rc::as_ptr(&root), "alloc::rc::RcInner<core::cell::RefCell<typed_cycles::Tree>>");
        // Numbers of the size of a Node's box that begin like counters, and refer to another such block
        let words: &mut [usize] = Box::leak(vec![1usize; 15].into_boxed_slice());
        let others: &mut [usize] = Box::leak(vec![1usize; 15].into_boxed_slice());
        words[2] = others.as_ptr() as usize;
        others[2] = words.as_ptr() as usize;
        println!("{:x} leaked usize[15]\n{:x} leaked usize[15]", words.as_ptr() as usize, others.as_ptr() as usize);
    }
}

fn main() {
    let words: Vec<u64> = std::env::args().skip(1).map(|word| word.parse().unwrap()).collect();
    leak(words[0]);
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}
