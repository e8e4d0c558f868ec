# Interpreters of three threads: each thread has objects of class Held, and cycles of class Lost, which nothing refers to. Prints "ready".
use strict;
use threads;
use threads::shared;

my $ready : shared = 0;
my @threads;
for my $number (1 .. 3) {
    push @threads, threads->create(sub {
        my @held = map { bless { number => $_ }, "Held" } 1 .. 200;
        for (1 .. 150) {
            my $one = bless {}, "Lost";
            $one->{self} = $one;
        }
        { lock($ready); $ready++; cond_signal($ready); }
        sleep 1 while $ready < 100;
        return scalar @held;
    });
    lock($ready);
    cond_wait($ready) while $ready < $number;
}
$| = 1;
print "ready\n";
sleep 1 while 1;
