# Objects that refer to themselves are lost. Their addresses remain in numbers, and in the memory of strings that are numbers now. Prints "lost KIND ADDRESS" for each object, then "ready".
use strict;
use warnings;
use Scalar::Util 'refaddr';

our (@numbers, @strings, @texts);

sub lose {
    my ($kind, $pointers) = @_;
    my $object;
    bless \$object, 'Lost';
    $object = \$object;
    push @texts, sprintf("lost %s %x\n", $kind, refaddr $object);
    my $freed = sub { \@_ }->(($object) x $pointers);  # the values below take the memory of this array
    return $kind eq 'number' ? refaddr $object : 0;
}

sub keep_number { push @numbers, lose('number', 1) }
sub keep_string { my ($length) = @_; lose('string', 12); my $text = 'x' x $length; $text = 5; push @strings, \$text }

for my $number (1 .. 200) {
    keep_number();
    keep_string(60 + $number % 4);
}
sub sweep { my ($depth) = @_; my @words = (0) x 20; return $depth ? sweep($depth - 1) : 0 }
sweep(60);
$| = 1;
print @texts, "ready\n";
sleep 3600;
