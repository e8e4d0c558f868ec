//! A program that prints the true type of each of its boxes: a server. Enums have many variants, and words that the current variant does not
//! have; filters are trait objects; jobs are boxed closures. With --cfg once, the owners are in a OnceLock, and the labels in a LazyLock.
//!
//!   typed_server REQUESTS SEED
use std::cell::{Cell, RefCell};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, LinkedList, VecDeque};
use std::hash::BuildHasherDefault;
use std::io::Write;
use std::rc::{Rc, Weak};
use std::sync::{mpsc, Arc, Mutex};
use std::borrow::Cow;

type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
type HashSet<K> = std::collections::HashSet<K, BuildHasherDefault<DefaultHasher>>;
static mut STATE: u64 = 1;
fn roll(n: u64) -> u64 { unsafe { STATE = STATE.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); (STATE >> 33) % n } }
fn say<T: ?Sized>(at: *const T, name: &str) { println!("{:x} b typed_server::{}", at as *const u8 as usize, name); }
fn told<T>(value: T, name: &str) -> Box<T> { let made = Box::new(value); say(&*made, name); made }
fn text() -> String { (0..4 + roll(30)).map(|_| (b'a' + roll(26) as u8) as char).collect() }

pub struct Host { pub name: String, pub ports: Vec<u16>, pub alias: Option<Box<Host>> }
pub struct Header { pub key: Cow<'static, str>, pub value: String }
pub enum Body { Empty, Text(String), Bytes(Box<[u8]>), Parts(Vec<Box<Part>>), Stream { from: Box<Host>, left: u64 } }
pub struct Part { pub name: Option<String>, pub headers: Vec<Header>, pub body: Body }
pub struct Request { pub id: u64, pub host: Rc<Host>, pub headers: HashMap<String, Vec<String>>, pub body: Body, pub retry: Option<Box<Request>> }
pub trait Filter { fn run(&self) -> u64; }
pub struct Gzip { pub level: u32, pub dict: Option<Box<[u64]>> }
pub struct Auth { pub users: BTreeMap<String, Box<User>>, pub salt: [u8; 16] }
pub struct Log { pub lines: RefCell<VecDeque<Box<Line>>>, pub next: Option<Box<dyn Filter>> }
pub struct User { pub name: String, pub roles: BTreeSet<u32>, pub session: Option<Rc<Session>> }
pub struct Session { pub token: String, pub user: RefCell<Weak<Session>>, pub seen: Cell<u64> }
pub struct Line { pub at: u64, pub what: Box<str> }
impl Filter for Gzip { fn run(&self) -> u64 { self.level as u64 } }
impl Filter for Auth { fn run(&self) -> u64 { self.users.len() as u64 } }
impl Filter for Log { fn run(&self) -> u64 { self.lines.borrow().len() as u64 } }
pub enum Json { Null, Bool(bool), Number(f64), String(String), Array(Vec<Json>), Object(BTreeMap<String, Json>), Ref(Rc<Json>) }
pub enum Tree { Leaf, Node(Box<TreeNode>) }
pub struct TreeNode { pub left: Tree, pub right: Tree, pub key: u64, pub value: Box<Json> }
pub enum Expr { Num(i64), Var(String), Un(char, Box<Expr>), Bin(Box<Expr>, Op, Box<Expr>), Call { f: Box<Expr>, args: Vec<Expr> }, Let(String, Box<Expr>, Box<Expr>) }
#[derive(Clone, Copy)] pub enum Op { Add, Mul }
pub struct Gen<T> { pub items: Vec<Option<T>>, pub free: Vec<u32> }
pub struct Job { pub name: String, pub run: Box<dyn Fn(u64) -> u64 + Send>, pub deps: Vec<Arc<Job>> }
pub struct Cache { pub map: HashMap<u64, Box<Entry>>, pub order: LinkedList<u64> }
pub struct Entry { pub data: Arc<[u8]>, pub tags: HashSet<String>, pub owner: Option<Arc<Mutex<Owner>>> }
pub struct Owner { pub name: String, pub quota: u64, pub next: Option<Arc<Mutex<Owner>>> }
pub struct GNode { pub id: u64, pub edges: RefCell<Vec<Rc<GNode>>>, pub back: RefCell<Vec<Weak<GNode>>> }
#[derive(PartialEq, Eq, PartialOrd, Ord)] pub struct Timer { pub due: u64, pub label: Box<String> }
pub struct Server { pub requests: Vec<Box<Request>>, pub filters: Vec<Box<dyn Filter>>, pub tree: Tree, pub gen: Gen<Box<Host>>, pub jobs: HashMap<String, Arc<Job>>, pub cache: Cache, pub graph: Vec<Rc<GNode>>, pub timers: BinaryHeap<Timer>, pub exprs: VecDeque<Box<Expr>>, pub json: BTreeMap<u64, Box<Json>> }
#[cfg(once)]
struct Shared(std::sync::RwLock<HashMap<String, Box<Owner>>>);
#[cfg(once)]
static SHARED: std::sync::OnceLock<Shared> = std::sync::OnceLock::new();
#[cfg(once)]
static LABELS: std::sync::LazyLock<Mutex<Vec<Box<Host>>>> = std::sync::LazyLock::new(|| Mutex::new(Vec::new()));
thread_local! { static LOCAL: RefCell<HashMap<String, Box<Host>>> = RefCell::new(HashMap::default()); }
#[cfg(once)]
fn keep() {
    SHARED.get_or_init(|| Shared(std::sync::RwLock::new(HashMap::default()))).0.write().unwrap().insert(text(), told(Owner { name: text(), quota: 1, next: Some(owner(1)) }, "Owner"));
    LABELS.lock().unwrap().push(host(1));
}
#[cfg(not(once))]
fn keep() {}
static mut SERVER: *mut Server = std::ptr::null_mut();
static mut LINES: *const mpsc::Receiver<Box<Line>> = std::ptr::null();

fn host(d: u64) -> Box<Host> { let alias = if d > 0 && roll(2) == 0 { Some(host(d - 1)) } else { None }; told(Host { name: text(), ports: (0..roll(4)).map(|x| x as u16).collect(), alias }, "Host") }
fn part(d: u64) -> Box<Part> { let h = (0..roll(4)).map(|_| Header { key: if roll(2) == 0 { Cow::Borrowed("fixed") } else { Cow::Owned(text()) }, value: text() }).collect::<Vec<_>>(); let b = body(d); told(Part { name: if roll(2) == 0 { Some(text()) } else { None }, headers: h, body: b }, "Part") }
fn body(d: u64) -> Body { match roll(if d > 0 { 5 } else { 3 }) { 0 => Body::Empty, 1 => Body::Text(text()), 2 => Body::Bytes(vec![7u8; 20].into_boxed_slice()), 3 => Body::Parts((0..1 + roll(3)).map(|_| part(d - 1)).collect()), _ => Body::Stream { from: host(1), left: roll(1000) } } }
fn request(d: u64) -> Box<Request> { let retry = if d > 0 && roll(2) == 0 { Some(request(d - 1)) } else { None }; let mut headers = HashMap::default(); for _ in 0..roll(4) { headers.insert(text(), vec![text()]); } let body = body(2); told(Request { id: roll(1 << 30), host: Rc::new(Host { name: text(), ports: vec![1, 2], alias: Some(host(0)) }), headers, body, retry }, "Request") }
trait CloneHost { fn clone_host(&self) -> Rc<Host>; }
impl CloneHost for Host { fn clone_host(&self) -> Rc<Host> { Rc::new(Host { name: self.name.clone(), ports: self.ports.clone(), alias: None }) } }
fn session() -> Rc<Session> { Rc::new(Session { token: text(), user: RefCell::new(Weak::new()), seen: Cell::new(roll(99)) }) }
fn user() -> Box<User> { let s = if roll(2) == 0 { let s = session(); *s.user.borrow_mut() = Rc::downgrade(&s); Some(s) } else { None }; told(User { name: text(), roles: (0..roll(5) as u32).collect(), session: s }, "User") }
fn filter(d: u64) -> Box<dyn Filter> { match roll(3) { 0 => told(Gzip { level: 3, dict: if roll(2) == 0 { Some(vec![1u64, 2, 3].into_boxed_slice()) } else { None } }, "Gzip"), 1 => { let mut users = BTreeMap::new(); for _ in 0..roll(8) { users.insert(text(), user()); } told(Auth { users, salt: [9; 16] }, "Auth") } _ => { let lines = (0..roll(6)).map(|n| told(Line { at: n, what: text().into_boxed_str() }, "Line")).collect(); let next = if d > 0 { Some(filter(d - 1)) } else { None }; told(Log { lines: RefCell::new(lines), next }, "Log") } } }
fn json(d: u64) -> Json { match roll(if d > 0 { 7 } else { 4 }) { 0 => Json::Null, 1 => Json::Bool(true), 2 => Json::Number(roll(100) as f64 / 3.0), 3 => Json::String(text()), 4 => { let v: Vec<Json> = (0..1 + roll(4)).map(|_| json(d - 1)).collect(); Json::Array(v) } 5 => Json::Object((0..roll(4)).map(|_| (text(), json(d - 1))).collect()), _ => Json::Ref(Rc::new(json(d - 1))) } }
fn jbox(d: u64) -> Box<Json> { let j = json(d); told(j, "Json") }
fn tree_add(t: &mut Tree, key: u64) { match t { Tree::Leaf => { let v = jbox(2); *t = Tree::Node(told(TreeNode { left: Tree::Leaf, right: Tree::Leaf, key, value: v }, "TreeNode")) } Tree::Node(n) => if key < n.key { tree_add(&mut n.left, key) } else { tree_add(&mut n.right, key) } } }
fn expr(d: u64) -> Box<Expr> { let e = match roll(if d > 0 { 6 } else { 2 }) { 0 => Expr::Num(roll(1000) as i64), 1 => Expr::Var(text()), 2 => Expr::Un('-', expr(d - 1)), 3 => Expr::Bin(expr(d - 1), if roll(2) == 0 { Op::Add } else { Op::Mul }, expr(d - 1)), 4 => Expr::Call { f: expr(d - 1), args: (0..roll(3)).map(|_| *expr(0)).collect() }, _ => Expr::Let(text(), expr(d - 1), expr(d - 1)) }; Box::new(e) }
fn say_expr(e: &Expr) { match e { Expr::Un(_, a) => { say(&**a, "Expr"); say_expr(a) } Expr::Bin(a, _, b) | Expr::Let(_, a, b) => { say(&**a, "Expr"); say_expr(a); say(&**b, "Expr"); say_expr(b) } Expr::Call { f, args } => { say(&**f, "Expr"); say_expr(f); for a in args { say_expr(a) } } _ => () } }
fn owner(d: u64) -> Arc<Mutex<Owner>> { let next = if d > 0 && roll(2) == 0 { Some(owner(d - 1)) } else { None }; Arc::new(Mutex::new(Owner { name: text(), quota: roll(99), next })) }
fn entry() -> Box<Entry> { let tags = (0..roll(4)).map(|_| text()).collect(); let o = if roll(2) == 0 { Some(owner(2)) } else { None }; told(Entry { data: Arc::from(vec![5u8; 24]), tags, owner: o }, "Entry") }
fn job(d: u64) -> Arc<Job> { let (a, b) = (text(), roll(9)); let deps = (0..if d > 0 { roll(3) } else { 0 }).map(|_| job(d - 1)).collect(); let run: Box<dyn Fn(u64) -> u64 + Send> = match roll(2) { 0 => Box::new(move |x| x + a.len() as u64), _ => Box::new(move |x| x * b) }; Arc::new(Job { name: text(), run, deps }) }
#[inline(never)]
fn fill(n: u64) -> mpsc::Receiver<Box<Line>> {
    let (tx, rx) = mpsc::channel();
    let s = unsafe { &mut *SERVER };
    let mut prev: Option<Rc<GNode>> = None;
    for i in 0..n {
        let leak = i % 5 == 4;
        let r = request(2); if leak { std::mem::forget(r) } else { s.requests.push(r) }
        let f = filter(2); if leak { std::mem::forget(f) } else { s.filters.push(f) }
        if !leak { tree_add(&mut s.tree, roll(1 << 30)) } else { let mut t = Tree::Leaf; tree_add(&mut t, 3); tree_add(&mut t, 1); tree_add(&mut t, 9); std::mem::forget(t) }
        let h = host(1); if leak { std::mem::forget(h) } else { s.gen.items.push(Some(h)); if roll(4) == 0 { s.gen.items.push(None) } }
        let j = job(2); if leak { std::mem::forget(j) } else { s.jobs.insert(text(), j); }
        let e = entry(); if leak { std::mem::forget(e) } else { s.cache.map.insert(i, e); s.cache.order.push_back(i) }
        let g = Rc::new(GNode { id: i, edges: RefCell::new(vec![]), back: RefCell::new(vec![]) }); if let Some(p) = &prev { g.edges.borrow_mut().push(p.clone()); p.back.borrow_mut().push(Rc::downgrade(&g)) } if leak { std::mem::forget(g); prev = None } else { s.graph.push(g.clone()); prev = Some(g) }
        if !leak { s.timers.push(Timer { due: roll(100), label: Box::new(text()) }) }
        let x = expr(4); say(&*x, "Expr"); say_expr(&x); if leak { std::mem::forget(x) } else { s.exprs.push_back(x) }
        let k = jbox(3); if leak { std::mem::forget(k) } else { s.json.insert(roll(1 << 40), k); }
        if !leak { tx.send(told(Line { at: i, what: text().into_boxed_str() }, "Line")).unwrap(); keep(); LOCAL.with(|one| one.borrow_mut().insert(text(), host(1))); }
    }
    std::mem::forget(tx);
    rx
}
#[inline(never)]
fn clear() { let mut space = [0u8; 65536]; for at in space.iter_mut() { unsafe { std::ptr::write_volatile(at, 0) } } }
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n: u64 = a.get(1).map_or(300, |x| x.parse().unwrap());
    unsafe { STATE = a.get(2).map_or(1, |x| x.parse().unwrap()); }
    unsafe { SERVER = Box::into_raw(Box::new(Server { requests: vec![], filters: vec![], tree: Tree::Leaf, gen: Gen { items: vec![], free: vec![] }, jobs: HashMap::default(), cache: Cache { map: HashMap::default(), order: LinkedList::new() }, graph: vec![], timers: BinaryHeap::new(), exprs: VecDeque::new(), json: BTreeMap::new() })); }
    let rx = fill(n);
    let keep = Box::leak(Box::new(rx));
    unsafe { LINES = keep; } // the types of the lines must not depend on the local variable alone
    clear();
    println!("ready"); std::io::stdout().flush().unwrap();
    loop { std::thread::sleep(std::time::Duration::from_secs(1)); unsafe { std::ptr::read_volatile(&keep) }; }
}
