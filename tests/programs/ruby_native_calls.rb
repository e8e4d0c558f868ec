# Call a function of C from methods and blocks of each kind, a round of calls for each line of the input. Prints the frames of each call as
# JSON, innermost first, with the number of calls in all rounds.
#
# Arguments: the library, methods that are made, called and removed in each round.

require "fiddle"
require "json"

LIBRARY = Fiddle.dlopen(ARGV[0])
CHANGING = ARGV[1].to_i
PROBED = Fiddle::Function.new(LIBRARY["probed"], [Fiddle::TYPE_SIZE_T], Fiddle::TYPE_VOID)
CALL_BACK = Fiddle::Function.new(LIBRARY["call_back"], [Fiddle::TYPE_VOIDP], Fiddle::TYPE_VOID)
CALLS = Hash.new(0)
LOCK = Mutex.new

# Count the call that the caller makes in the same line.
def note(size)
  frames = caller_locations(1).map { |one| [one.label, one.path, one.lineno] }
  LOCK.synchronize { CALLS[[frames, size]] += 1 }
  size
end

class Shape
  include Comparable
  attr_reader :sides

  def initialize(sides)
    @sides = sides
  end

  def area
    PROBED.call(note(48))
    @sides
  end

  def <=>(other)
    PROBED.call(note(56))
    @sides <=> other.sides
  end

  def each
    @sides.times do |side|
      PROBED.call(note(64))
      yield side
    end
  end

  def self.build
    PROBED.call(note(72))
  end

  define_method(:defined) { |size| PROBED.call(note(size)) }

  def method_missing(name, *rest)
    PROBED.call(note(80))
  end

  def respond_to_missing?(*)
    true
  end
end

def deep(levels)
  return 1 + deep(levels - 1) if levels > 0
  PROBED.call(note(88))
  0
end

def from_c(&block)
  made = Fiddle::Closure::BlockCaller.new(Fiddle::TYPE_VOID, [], &block)
  CALL_BACK.call(made)
end

def failing
  raise "no"
rescue RuntimeError
  PROBED.call(note(96))
ensure
  PROBED.call(note(104))
end

def many_lines
  found = []
  found << 1
  found << 2 if found.size > 5
  [1, 2, 3].each do |one|
    case one
    when 1
      found << one
      PROBED.call(note(160))
    when 2 then found << found.map { |two| two + one }.sum
    else
      found.each_with_index do |two, at|
        next if at < 1
        PROBED.call(note(168))
      end
    end
  end
  { first: 1, second: 2 }.each_pair { |_, value| value.zero? ? nil : PROBED.call(note(176)) }
  %w[a b].inject("") { |text, part| PROBED.call(note(184)); text + part }
end

# Methods whose instruction sequences are freed. Later instruction sequences get the same addresses.
def changing
  CHANGING.times do |number|
    name = "made_#{number % 50}"
    Object.class_eval("#{"\n" * (number % 7)}def #{name}\n  PROBED.call(note(#{1000 + number % 50}))\nend\n", "made#{number % 3}.rb", 1)
    send(name)
    Object.send(:remove_method, name)
    GC.start if number % 100 == 99
  end
end

def round_of_calls
  Shape.new(3).area
  [Shape.new(1), Shape.new(2), Shape.new(3)].sort
  Shape.new(4).each { |side| side + 1 }
  Shape.build
  Shape.new(1).defined(112)
  Shape.new(1).anything
  deep(30)
  from_c { PROBED.call(note(120)) }
  from_c { from_c { PROBED.call(note(128)) } }
  failing
  many_lines
  eval("PROBED.call(note(136))", binding, "evaluated.rb", 7)
  fiber = Fiber.new { PROBED.call(note(144)); Fiber.yield; PROBED.call(note(192)) }
  2.times { fiber.resume }
  changing
  Thread.new { PROBED.call(note(152)) }.join
end

$stdout.sync = true
puts "ready"
while $stdin.gets
  round_of_calls
  puts JSON.generate(CALLS.map { |(frames, size), count| [count, size, frames] })
  puts "done"
end
