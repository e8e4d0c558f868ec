# Objects of many kinds, and what the interpreter itself says of them. It pauses wherever it reads a byte from the FIFO that the first argument
# names; after each third pause it prints the counters taken just before: nothing is allocated between counting and pausing then.
require "zlib"

pause = File.open(ARGV[0], "r+")
class Plain
  def initialize(number)
    @number = number
  end
end

class Derived < Plain; end

module Outer
  class Inner; end
  Row = Struct.new(:left, :right)
end

class Text < String; end

anonymous = Class.new
$nested = Module.new
$nested.const_set(:Named, Class.new)
single = Object.new
def single.own; end

$kept = []
300.times do |number|
  $kept << Plain.new(number) << Outer::Inner.new << "long enough to be elsewhere, surely #{number}" << [number] * 40
end
200.times { |number| $kept << Derived.new(number) << Outer::Row.new(number, 2) << { number => 1 } << Text.new("text") }
100.times { |number| $kept << anonymous.new << $nested::Named.new << (1 << 90) + number << number.to_f / 3.0e200 << Rational(number, 7) }
50.times { $kept << Mutex.new << /x#{rand}/ << "abc".match(/b/) << proc { single } << Thread::Queue.new }
$kept << single << anonymous
20.times { |number| $kept << Zlib::Deflate.new.tap { |deflate| deflate.deflate("text #{number}") } }
3000.times { Object.new; "garbage" * 20 }
GC.start

names = [Plain, Derived, Outer::Inner, Outer::Row, Text, anonymous, $nested::Named, Mutex, Thread::Queue, Encoding, Struct, IO, Float, Integer]
sizes = {}
$statistics = {}
$objects = {}
buffer = String.new(capacity: 64)
GC.disable
$stdout.sync = true
loop do
  puts "ready"
  names.each { |name| sizes[name] = ObjectSpace.each_object(name).count { |object| object.class.equal?(name) } }
  3.times do |round| # the first two calls allocate what caches them
    GC.stat($statistics)
    ObjectSpace.count_objects($objects)
    pause.sysread(1, buffer)
  end
  $stdout.puts [$statistics.map { |name, value| "#{name}=#{value}" }.join(" "),
                $objects.map { |name, value| "#{name}=#{value}" }.join(" "),
                names.map { |name| "#{name.inspect.tr(' ', '_')}=#{sizes[name]}" }.join(" "),
                "version=#{RUBY_VERSION}"].join(" ")
end
