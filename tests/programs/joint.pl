# Two variables of a package refer to the same sessions. The argument is their number.
package Session;
sub new { my ($class, $number) = @_; return bless { number => $number, data => "x" x 500 . $number }, $class; }

package main;
$| = 1;
our (%by_id, @recent);
for my $number (0 .. $ARGV[0] - 1) {
    my $session = Session->new($number);
    $by_id{$number} = $session;
    push @recent, $session;
}
print "ready\n";
sleep 3600;
