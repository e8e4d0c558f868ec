# Leaks native blocks by three calls that Ruby makes, and reads a byte from the FIFO that its first argument names.
require "fiddle"

strdup = Fiddle::Function.new(Fiddle::Handle::DEFAULT["strdup"], [Fiddle::TYPE_VOIDP], Fiddle::TYPE_UINTPTR_T)
calloc = Fiddle::Function.new(Fiddle::Handle::DEFAULT["calloc"], [Fiddle::TYPE_SIZE_T, Fiddle::TYPE_SIZE_T], Fiddle::TYPE_UINTPTR_T)

fifo = File.open(ARGV[0], "rb")
def leak(count)
  i = 0
  while i < count
    yield i
    i += 1
  end
end
leak(1000) { Fiddle.malloc(5000) }
leak(700) { |i| strdup.call("GET /orders/#{i} HTTP/1.1") }
leak(300) { calloc.call(10, 40) }
leak(50) { |i| "x" * 100 * i }
$stdout.puts "ready"
$stdout.flush
fifo.read(1)
