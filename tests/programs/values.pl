# Values of Perl. Prints "KIND CLASS ADDRESS" for each object: held, leaked (a cycle, or a count that is one too high) or freed. Then
# "elements NAME COUNT" for each variable that keeps objects, and "ready".
use strict;
use warnings;
use Scalar::Util qw(refaddr);

package Order;    # its objects are hashes, and have an array of 3 strings each

sub new {
    my ($class, $number) = @_;
    return bless { number => $number, lines => ["first $number", "second $number", "third $number"] }, $class;
}

package Point;    # its objects are arrays

sub new {
    my ($class, $x, $y) = @_;
    return bless [$x, $y], $class;
}

package Shop;
our (%orders, @points, $registry);
my %hidden;

sub keep {
    my ($number) = @_;
    my $order = $orders{"number $number"} = Order->new($number);
    push @points, Point->new($number, $number + 1);
    $hidden{$number} = Order->new($number);
    $registry->{$number} = Point->new($number, 0);
    return ($order, $points[-1], $hidden{$number}, $registry->{$number});
}

# Each child has a weak reference to its parent: both are freed with the last reference to the parent.
sub tree {
    my ($depth) = @_;
    my $node = Order->new($depth);
    for my $child (map { tree($depth - 1); } $depth ? 1 .. 2 : ()) {
        $child->{parent} = $node;
        Scalar::Util::weaken($child->{parent});
        push @{ $node->{children} }, $child;
    }
    return $node;
}

package main;

sub report {
    my ($kind, @objects) = @_;
    printf "%s %s %#x\n", $kind, ref, refaddr $_ for @objects;
}

sub leak_pair {
    my ($number) = @_;
    my ($one, $other) = (Order->new($number), Order->new($number));
    $one->{next}   = $other;
    $other->{next} = $one;
    report('leaked', $one, $other);
}

sub leak_closure {
    my ($number) = @_;
    my $point = Point->new($number, $number);
    my $walk;
    $walk = sub { $_[0] > 0 ? $walk->($_[0] - 1) + $point->[0] : 0 };
    $walk->(3);
    report('leaked', $point);
    printf "leaked CODE %#x\n", refaddr $walk;
}

sub leak_counted {    # as an extension does that forgets to drop a reference
    my ($number) = @_;
    my $point = Point->new($number, 0);
    Internals::SvREFCNT(@$point, 2);
    report('leaked', $point);
}

sub sweep {
    my ($depth) = @_;
    my @values = ($depth) x 40;
    return $depth ? sweep($depth - 1) + $values[7] : 0;
}

my @later;
report('held', Shop::keep($_)) for 1 .. 300;
my $tree = Shop::tree(5);
report('held', $tree, @{ $tree->{children} });
my ($mode) = @ARGV;
if ($mode eq 'leak') {
    leak_pair($_)    for 1 .. 100;
    leak_closure($_) for 1 .. 100;
    leak_counted($_) for 1 .. 50;
}
my $dropped = Shop::tree(5);
@later = (@later, map { Order->new($_) } 1 .. 200);
report('freed', @later, $dropped, @{ $dropped->{children} });
my %counts = ('%Shop::orders', scalar keys %Shop::orders, '@Shop::points', scalar @Shop::points, '$Shop::registry', scalar keys %$Shop::registry);
print "elements $_ $counts{$_}\n" for sort keys %counts;
sweep(200);
$| = 1;
undef $dropped;
@later = ();
print "ready\n";
sleep 3600 while 1;
