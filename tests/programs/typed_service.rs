//! A program that prints the true type of each of its boxes: expressions, files, plugins, connections, and a cache. Several structs have the form
//! of an array of strings, because a vector has the form of a string. A fifth is leaked.
//!
//!   typed_service BLOCKS SEED
use std::cell::{Cell, RefCell};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::hash::BuildHasherDefault;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, RwLock, OnceLock};
use std::io::Write;
type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
type HashSet<K> = std::collections::HashSet<K, BuildHasherDefault<DefaultHasher>>;
static mut STATE: u64 = 1; static mut N: usize = 0;
fn roll(n: u64) -> u64 { unsafe { STATE = STATE.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407); (STATE >> 33) % n } }
fn text() -> String { (0..3 + roll(20)).map(|_| (b'a' + roll(26) as u8) as char).collect() }
#[inline(never)] fn track<T>(p: *const T, name: &str) { unsafe { N += 1; } println!("{:x} - typed_service::{}", p as usize, name); }
fn boxed<T>(v: T, name: &str) -> Box<T> { let b = Box::new(v); track(&*b as *const T, name); b }
fn rc<T>(v: T, name: &str) -> Rc<T> { let b = Rc::new(v); unsafe { N += 1; } println!("{:x} - alloc::rc::RcInner<typed_service::{}>", Rc::as_ptr(&b) as *const u8 as usize - 16, name); b }
fn arc<T>(v: T, name: &str) -> Arc<T> { let b = Arc::new(v); unsafe { N += 1; } println!("{:x} - alloc::sync::ArcInner<typed_service::{}>", Arc::as_ptr(&b) as *const u8 as usize - 16, name); b }

pub enum Expr { Num(f64), Str(String), Bin(char, Box<Expr>, Box<Expr>), Call(Rc<Func>, Vec<Expr>), If { cond: Box<Expr>, then: Box<Expr>, other: Option<Box<Expr>> }, Nil }
pub struct Func { name: String, params: Vec<String>, body: RefCell<Option<Box<Expr>>>, hits: Cell<u64> }
pub struct Inode { name: String, size: u64, parent: RefCell<Weak<Inode>>, kids: RefCell<BTreeMap<String, Rc<Inode>>> }
pub trait Plugin { fn run(&mut self, x: u64) -> u64; fn name(&self) -> &str; }
pub struct Counter { n: u64, label: String }
pub struct Chain { inner: Vec<Box<dyn Plugin>>, tag: Box<Tag> }
pub struct Tag { id: u32, up: Option<Arc<Conn>> }
impl Plugin for Counter { fn run(&mut self, x: u64) -> u64 { self.n += x; self.n } fn name(&self) -> &str { &self.label } }
impl Plugin for Chain { fn run(&mut self, x: u64) -> u64 { self.inner.iter_mut().fold(x, |a, p| p.run(a)) + self.tag.id as u64 } fn name(&self) -> &str { "chain" } }
pub struct Conn { peer: String, buf: Mutex<Vec<u8>>, routes: RwLock<HashMap<u32, Arc<Route>>>, stats: [u64; 4] }
pub struct Route { prefix: String, next: Option<Arc<Route>>, weight: f32 }
pub enum Slot<T> { Vacant(usize), Occupied(T) }
pub struct Slab<T> { entries: Vec<Slot<T>>, next: usize }
pub struct Timer { at: u64, job: Box<dyn FnMut(u64) -> u64> }
pub struct Item { key: u64, val: Payload, prev: *mut Item, next: *mut Item }
pub enum Payload { None, Blob(Box<[u8]>), Ref(Box<Tag>), Many(Vec<Box<Tag>>), Shared(Arc<Route>), Text(Rc<str>) }
pub struct Lru { map: HashMap<u64, *mut Item>, head: *mut Item }
impl PartialEq for Timer { fn eq(&self, o: &Self) -> bool { self.at == o.at } } impl Eq for Timer {}
impl PartialOrd for Timer { fn partial_cmp(&self, o: &Self) -> Option<std::cmp::Ordering> { Some(self.cmp(o)) } } impl Ord for Timer { fn cmp(&self, o: &Self) -> std::cmp::Ordering { self.at.cmp(&o.at) } }
pub struct World { funcs: Vec<Rc<Func>>, root: Rc<Inode>, plugins: Vec<Box<dyn Plugin>>, conns: HashMap<String, Arc<Conn>>, slab: Slab<Box<Item2>>, timers: BinaryHeap<Timer>, lru: Lru, names: HashSet<String>, log: VecDeque<Box<Entry>> }
pub struct Item2 { name: String, link: Option<Box<Item2>>, opt: Option<u32>, route: Result<Arc<Route>, String> }
pub struct Entry { level: u8, text: String, fields: Vec<(String, Payload)> }
static CONFIG: OnceLock<Box<Tag>> = OnceLock::new();
static mut WORLD: *mut World = std::ptr::null_mut();

fn expr(d: u32, f: &Vec<Rc<Func>>) -> Expr { match roll(if d > 0 { 6 } else { 2 }) { 0 => Expr::Num(1.5), 1 => Expr::Str(text()), 2 => Expr::Bin('+', boxed(expr(d - 1, f), "Expr"), boxed(expr(d - 1, f), "Expr")), 3 if !f.is_empty() => { let v: Vec<Expr> = (0..1 + roll(3)).map(|_| expr(d - 1, f)).collect(); Expr::Call(f[roll(f.len() as u64) as usize].clone(), v) } 4 => Expr::If { cond: boxed(expr(d - 1, f), "Expr"), then: boxed(expr(d - 1, f), "Expr"), other: if roll(2) == 0 { Some(boxed(expr(d - 1, f), "Expr")) } else { None } }, _ => Expr::Nil } }
fn func(f: &Vec<Rc<Func>>) -> Rc<Func> { let n = rc(Func { name: text(), params: (0..roll(4)).map(|_| text()).collect(), body: RefCell::new(None), hits: Cell::new(roll(99)) }, "Func"); *n.body.borrow_mut() = Some(boxed(expr(4, f), "Expr")); n }
fn inode(d: u32) -> Rc<Inode> { let n = rc(Inode { name: text(), size: roll(9999), parent: RefCell::new(Weak::new()), kids: RefCell::new(BTreeMap::new()) }, "Inode"); if d > 0 { for _ in 0..roll(5) { let k = inode(d - 1); *k.parent.borrow_mut() = Rc::downgrade(&n); n.kids.borrow_mut().insert(k.name.clone(), k); } } n }
fn tag(c: &Option<Arc<Conn>>) -> Box<Tag> { boxed(Tag { id: roll(1000) as u32, up: c.clone() }, "Tag") }
fn plugin(d: u32, c: &Option<Arc<Conn>>) -> Box<dyn Plugin> { if d == 0 || roll(2) == 0 { boxed(Counter { n: roll(100), label: text() }, "Counter") } else { boxed(Chain { inner: (0..roll(4)).map(|_| plugin(d - 1, c)).collect(), tag: tag(c) }, "Chain") } }
fn route(d: u32) -> Arc<Route> { arc(Route { prefix: text(), next: if d > 0 && roll(2) == 0 { Some(route(d - 1)) } else { None }, weight: 0.5 }, "Route") }
fn conn() -> Arc<Conn> { let c = arc(Conn { peer: text(), buf: Mutex::new(vec![7; roll(60) as usize]), routes: RwLock::new(HashMap::default()), stats: [roll(9), 2, 3, 4] }, "Conn"); for i in 0..roll(6) { c.routes.write().unwrap().insert(i as u32, route(2)); } c }
fn payload(c: &Option<Arc<Conn>>) -> Payload { match roll(6) { 0 => Payload::None, 1 => Payload::Blob(vec![1u8; 20].into_boxed_slice()), 2 => Payload::Ref(tag(c)), 3 => Payload::Many((0..1 + roll(3)).map(|_| tag(c)).collect()), 4 => Payload::Shared(route(1)), _ => Payload::Text(Rc::from(text().as_str())) } }
fn item2(d: u32) -> Box<Item2> { boxed(Item2 { name: text(), link: if d > 0 && roll(2) == 0 { Some(item2(d - 1)) } else { None }, opt: if roll(2) == 0 { Some(4) } else { None }, route: if roll(2) == 0 { Ok(route(0)) } else { Err(text()) } }, "Item2") }
fn entry(c: &Option<Arc<Conn>>) -> Box<Entry> { boxed(Entry { level: roll(5) as u8, text: text(), fields: (0..roll(4)).map(|_| (text(), payload(c))).collect() }, "Entry") }
fn timer(w: Option<*mut World>) -> Timer { let n = roll(100); let s = text(); if roll(2) == 0 { Timer { at: n, job: Box::new(move |x| x + n + s.len() as u64) } } else { let t = tag(&None); Timer { at: n, job: Box::new(move |x| x + t.id as u64 + w.map_or(0, |p| p as u64)) } } }
#[inline(never)] fn step(w: &mut World, live: bool) { let c = if live { w.conns.values().next().cloned() } else { None }; match roll(9) {
 0 => { for _ in 0..3 { let f = func(&w.funcs); if live { w.funcs.push(f) } else { std::mem::forget(f) } } }
 1 => { let i = inode(3); if live { *i.parent.borrow_mut() = Rc::downgrade(&w.root); if let Some(o) = w.root.kids.borrow_mut().insert(i.name.clone(), i) { std::mem::forget(o) } } else { std::mem::forget(i) } }
 2 => for _ in 0..4 { let p = plugin(3, &c); if live { w.plugins.push(p) } else { std::mem::forget(p) } },
 3 => for _ in 0..3 { let p = conn(); if live { if let Some(o) = w.conns.insert(p.peer.clone(), p) { std::mem::forget(o) } } else { std::mem::forget(p) } },
 4 => for _ in 0..8 { let p = item2(2); if live { if roll(5) == 0 { w.slab.entries.push(Slot::Vacant(w.slab.next)); } w.slab.entries.push(Slot::Occupied(p)); } else { std::mem::forget(p) } },
 5 => for _ in 0..8 { let t = timer(None); if live { w.timers.push(t) } else { std::mem::forget(t) } },
 6 => for _ in 0..8 { let i = Box::into_raw(boxed(Item { key: roll(1 << 30), val: payload(&c), prev: std::ptr::null_mut(), next: std::ptr::null_mut() }, "Item")); if live { unsafe { (*i).next = w.lru.head; if !w.lru.head.is_null() { (*w.lru.head).prev = i; } w.lru.head = i; w.lru.map.insert((*i).key, i); } } },
 7 => for _ in 0..8 { let e = entry(&c); if live { w.log.push_back(e); if roll(4) == 0 { w.log.pop_front().map(std::mem::forget); } } else { std::mem::forget(e) } },
 _ => { if live { w.names.insert(text()); } } } }
#[inline(never)] fn wipe() -> usize { let b = [0u8; 65536]; std::hint::black_box(&b).len() }
fn main() { let a: Vec<String> = std::env::args().collect(); let want: usize = a.get(1).map_or(20000, |x| x.parse().unwrap()); unsafe { STATE = a.get(2).map_or(1, |x| x.parse().unwrap()); }
 let w = Box::new(World { funcs: vec![], root: inode(1), plugins: vec![], conns: HashMap::default(), slab: Slab { entries: vec![], next: 0 }, timers: BinaryHeap::new(), lru: Lru { map: HashMap::default(), head: std::ptr::null_mut() }, names: HashSet::default(), log: VecDeque::new() });
 unsafe { WORLD = Box::into_raw(w); } CONFIG.get_or_init(|| tag(&None));
 while unsafe { N } < want { let live = roll(5) != 0; step(unsafe { &mut *WORLD }, live); } wipe(); println!("ready"); std::io::stdout().flush().unwrap(); loop { std::thread::park(); } }
