//! A program that prints the true type of each of its boxes, as typed_enums.rs does. The discriminant of its enum is the capacity of a
//! vector, whose impossible values select the other variants. The capacity 3 has the same low bytes as the value of a variant. Users have
//! three strings, and thus also fit a vector of three strings. The order of the events changes which memory is used again.
//!
//!   typed_niches EVENTS SEED
use std::io::Write;

pub struct User {
    pub name: String,
    pub mail: String,
    pub city: String,
}

pub struct Note {
    pub text: String,
    pub next: Option<Box<Note>>,
}

pub struct Order {
    pub number: u64,
    pub user: Box<User>,
    pub note: Option<Box<Note>>,
}

pub enum Event {
    Login(Box<User>),
    Words(Vec<String>),
    Tick(u64),
    Named(Box<User>),
    Order(Box<Order>),
    Note(Box<Note>),
}

static mut EVENTS: *mut Vec<Event> = std::ptr::null_mut();

fn tell<T>(value: *const T, name: &str) {
    println!("{:x} reachable {}", value as usize, name);
}

fn tell_note(one: &Box<Note>) {
    tell(&**one, "typed_niches::Note");
    one.next.iter().for_each(tell_note);
}

fn tell_event(one: &Event) {
    match one {
        Event::Login(user) | Event::Named(user) => tell(&**user, "typed_niches::User"),
        Event::Words(words) => tell(words.as_ptr(), "alloc::string::String[]"),
        Event::Tick(_) => (),
        Event::Order(order) => {
            tell(&**order, "typed_niches::Order");
            tell(&*order.user, "typed_niches::User");
            order.note.iter().for_each(tell_note);
        }
        Event::Note(note) => tell_note(note),
    }
}

fn text(number: usize) -> String {
    format!("a text of number {}", number)
}

fn user(number: usize) -> Box<User> {
    Box::new(User { name: text(number), mail: text(number + 1), city: text(number + 2) })
}

fn note(number: usize) -> Box<Note> {
    let next = if number % 3 == 0 { Some(Box::new(Note { text: text(number), next: None })) } else { None };
    Box::new(Note { text: text(number + 1), next })
}

fn words(number: usize) -> Vec<String> {
    let mut made = Vec::with_capacity(3);
    for at in 0..1 + number % 3 {
        made.push(text(at));
    }
    made
}

#[inline(never)]
fn event(number: usize) -> Event {
    match number % 6 {
        0 => Event::Login(user(number)),
        1 => Event::Words(words(number)),
        2 => Event::Tick(number as u64),
        3 => Event::Named(user(number)),
        4 => Event::Order(Box::new(Order { number: number as u64, user: user(number), note: Some(note(number)) })),
        _ => Event::Note(note(number)),
    }
}

#[inline(never)]
fn clear_stack() {
    std::hint::black_box(&[0u8; 65536]);
}

fn main() {
    let count = std::env::args().nth(1).map_or(100, |word| word.parse().unwrap());
    let mut events = Box::new(Vec::with_capacity(count));
    for number in 0..count {
        events.push(event(number));
    }
    // Other variants take the places of the first events. Their old memory is free, or in use again.
    for number in 0..count / 4 {
        events[number] = event(number * 7 + 3);
    }
    events.iter().for_each(tell_event);
    unsafe { EVENTS = Box::into_raw(events) };
    clear_stack();
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
        println!("{}", unsafe { (&*EVENTS).len() });
    }
}
