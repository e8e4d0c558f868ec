# Objects of all kinds for a heap dump. It pauses when it reads a byte from the FIFO that the first argument names; then it writes
# ObjectSpace.dump_all to the file that the second argument names, and pauses again. With a third argument it traces allocations.
require "objspace"
require "set"

pause = File.open(ARGV[0], "r+")
output = File.open(ARGV[1], "w")
ObjectSpace.trace_object_allocations_start if ARGV[2]

class Item
  attr_accessor :next

  def initialize(number)
    @number = number
    @name = "item number #{number}, whose text is too long for a slot"
    @tags = [number, "tag #{number}", nil, 1.5, :sym]
  end

  def visit
    yield @number
  end
end

class Wide
  def initialize(number)
    12.times { |at| instance_variable_set("@field#{at}", [number, at]) }
  end
end

module Cache
  STORE = {}
  Pair = Struct.new(:left, :right)
  Many = Struct.new(*(1..9).map { |at| :"member#{at}" })
end

class Special < Item; end

def allocated_here(number)
  Item.new(number)
end

items = (1..800).map { |number| allocated_here(number) }
items.each_cons(2) { |one, other| one.next = other }
items.each { |one| Cache::STORE["key #{one.object_id % 7} #{one.instance_variable_get(:@number)}"] = one }
Cache::STORE.keys.each_slice(3) { |key, _| Cache::STORE.delete(key) }
$small = (1..50).map { |number| { number => "x#{number}", other: [number] } }
$pairs = (1..50).map { |number| Cache::Pair.new([number], "right #{number}") }
$many = (1..50).map { |number| Cache::Many.new(*(1..9).map { |at| [number, at] }) }
$wide = (1..50).map { |number| Wide.new(number) }
$large = (1..20).map { |number| (1..300).map { |at| [at] } }
$large.each { |one| 100.times { one.pop } }
$set = Set.new((1..100).map { |number| "element #{number}" })
$procs = (1..20).map { |number| held = ["captured #{number}"]; proc { held } }
$texts = ("a".."z").map { |letter| letter * 500 }
$parts = $texts.map { |text| text[100..] }
$slices = $large.map { |one| one[3..-2] }
$numbers = (1..10).map { |number| (1 << 200) + number } + (1..10).map { |number| 1.0e200 / number }
$noted = (1..20).map { |number| String.new("noted #{number}").tap { |text| text.instance_variable_set(:@note, ["note #{number}"]) } }
$special = Special.new(0)
def $special.single; end
$symbols = (1..20).map { |number| "dynamic symbol #{number}".to_sym }
GC.start
GC.disable
buffer = String.new(capacity: 64)
puts "ready"
$stdout.flush
pause.sysread(1, buffer)
ObjectSpace.dump_all(output: output)
output.flush
pause.sysread(1, buffer)
