// A static map of carts. The argument is their number. Prints how many blocks the map retains, then "ready".
use std::collections::HashMap;

pub struct Cart {
    pub items: Vec<String>,
}

static mut CARTS: Option<HashMap<u64, Box<Cart>>> = None;
const ITEMS: u64 = if cfg!(many) { 3 } else { 2 };

fn main() {
    let count: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let mut carts = HashMap::new();
    for number in 0..count {
        let items = (0..ITEMS).map(|item| format!("item {item} of the cart {number}")).collect();
        carts.insert(number, Box::new(Cart { items }));
    }
    unsafe { *std::ptr::addr_of_mut!(CARTS) = Some(carts) };
    println!("{}\nready", 1 + count * (2 + ITEMS)); // the table; a cart, its vector, its strings
    std::thread::sleep(std::time::Duration::from_secs(3600));
}
