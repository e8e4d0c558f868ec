//! Write a Breakpad minidump of a process that stands still: PID FILE [all]. With "all", its whole writable memory is in it.

use minidump_writer::app_memory::AppMemory;
use minidump_writer::minidump_writer::MinidumpWriterConfig;

fn writable(pid: i32) -> Vec<AppMemory> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process's mappings");
    maps.lines()
        .filter(|line| line.split_whitespace().nth(1).is_some_and(|mode| mode.starts_with("rw")))
        .map(|line| {
            let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
            let (start, end) = (usize::from_str_radix(start, 16).unwrap(), usize::from_str_radix(end, 16).unwrap());
            AppMemory { ptr: start, length: end - start }
        })
        .collect()
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let pid: i32 = words[1].parse().expect("a process id");
    let mut writer = MinidumpWriterConfig::new(pid, pid);
    if words.get(3).is_some_and(|word| word == "all") {
        writer.set_app_memory(writable(pid));
    }
    let mut file = std::fs::File::create(&words[2]).expect("a file to write");
    writer.write(&mut file).expect("a minidump");
}
