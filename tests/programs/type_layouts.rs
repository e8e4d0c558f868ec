//! Types of Rust, and what the compiler knows of them: lines as those of type_layouts.c, and
//! "variant TYPE VARIANT FIRST-WORD" of an instance.
use std::cell::RefCell;
use std::collections::HashMap;
use std::mem::size_of;
use std::rc::Rc;

pub enum Shape {
    Circle(f64),
    Rect { width: u32, height: u32 },
    Named(String),
    Empty,
}
pub enum Tree {
    Leaf,
    Node(Box<Tree>, i64),
}
pub struct Session {
    id: u64,
    user: Option<Box<String>>,
    shapes: Vec<Shape>,
    next: Option<Rc<RefCell<Session>>>,
    tree: Tree,
}
pub static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(3);

fn first_word<T>(value: &T) -> u64 {
    unsafe { *(value as *const T as *const u64) }
}

fn offset<T, M>(whole: &T, member: &M) -> usize {
    member as *const M as usize - whole as *const T as usize
}

fn main() {
    let shapes = vec![Shape::Circle(1.0), Shape::Rect { width: 1, height: 2 }, Shape::Named("x".to_string()), Shape::Empty];
    let names = ["Circle", "Rect", "Named", "Empty"];
    for (shape, name) in shapes.iter().zip(names) {
        println!("variant\ttype_layouts::Shape\t{}\t{}", name, first_word(shape));
    }
    let tree = Tree::Node(Box::new(Tree::Leaf), COUNT.load(std::sync::atomic::Ordering::Relaxed) as i64);
    println!("variant\ttype_layouts::Tree\tLeaf\t{}", first_word(&Tree::Leaf));
    println!("variant\ttype_layouts::Tree\tNode\t{}", first_word(&tree));
    let session = Session { id: 1, user: None, shapes, next: None, tree };
    println!("size\ttype_layouts::Session\t{}", size_of::<Session>());
    println!("size\ttype_layouts::Shape\t{}", size_of::<Shape>());
    println!("member\ttype_layouts::Session\tid\t{}\t8", offset(&session, &session.id));
    println!("member\ttype_layouts::Session\tuser\t{}\t8", offset(&session, &session.user));
    println!("member\ttype_layouts::Session\tshapes\t{}\t24", offset(&session, &session.shapes));
    println!("member\ttype_layouts::Session\tnext\t{}\t8", offset(&session, &session.next));
    println!("member\ttype_layouts::Session\ttree\t{}\t{}", offset(&session, &session.tree), size_of::<Tree>());
    let mut table: HashMap<u32, Rc<RefCell<Session>>> = HashMap::new();
    table.insert(1, Rc::new(RefCell::new(session)));
    std::hint::black_box(table);
}
