//! Boxes whose addresses are left in the buffers of standard output or input. All boxes are lost; prints their number, then "ready".
use std::hint::black_box;

fn lose(count: usize) {
    let mut boxes: Vec<Box<[u8; 200]>> = Vec::with_capacity(count);
    for number in 0..count {
        boxes.push(Box::new([number as u8; 200]));
    }
    while let Some(one) = boxes.pop() {
        std::mem::forget(black_box(one));
    }
    // The vector's storage is freed, and becomes the buffer.
}

fn main() {
    let mut line = String::new();
    if std::env::args().nth(1).as_deref() == Some("input") {
        lose(1024);
        std::io::stdin().read_line(&mut line).unwrap();
        println!("lost 1024\nready");
    } else {
        lose(128);
        println!("lost 128\nready");
    }
    std::thread::sleep(std::time::Duration::from_secs(3600));
}
