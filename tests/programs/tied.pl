# A tied hash and a tied array, whose objects have 3,000 and 2,000 elements. Prints "ready".
use strict;
use warnings;

package Hash;
sub TIEHASH { my ($class) = @_; return bless {}, $class }
sub STORE { my ($self, $key, $value) = @_; $self->{$key} = $value; return }
sub FETCH { my ($self, $key) = @_; return $self->{$key} }

package Array;
sub TIEARRAY { my ($class) = @_; return bless { list => [] }, $class }
sub STORE { my ($self, $number, $value) = @_; $self->{list}[$number] = $value; $self->{"extra $number"} = 1; return }
sub FETCH { my ($self, $number) = @_; return $self->{list}[$number] }
sub FETCHSIZE { my ($self) = @_; return scalar @{ $self->{list} } }
sub EXTEND { return }

package main;
tie our %sessions, 'Hash';
tie our @queue,    'Array';
$sessions{"session $_"} = "value $_ " x 10 for 1 .. 3000;
$queue[$_] = "job $_ " x 10 for 0 .. 1999;
$| = 1;
print "ready\n";
sleep 3600 while 1;
