# For each kind of holder, texts that only this holder retains. It prints the number of the texts of each kind and the line of its holder,
# then "ready", and waits.
COUNT, BYTES = 3000, 2000
$procs, $methods = [], []

def texts(kind)
  Array.new(COUNT) { |number| (kind + number.to_s).ljust(BYTES, "x") }
end

def close(text)
  -> { text }
end

def finalize(text)
  object = Object.new
  ObjectSpace.define_finalizer(object, proc { text.size })
end

def in_thread
  waiting = texts("thread"); Thread.stop
  waiting.size
end

def in_fiber
  suspended = texts("fiber"); Fiber.yield
  suspended.size
end

texts("proc").each { |text| $procs << close(text) }
texts("method").each { |text| $methods << text.method(:size) }
texts("finalizer").each { |text| finalize(text) }
Thread.new { in_thread }
FIBER = Fiber.new { in_fiber }
FIBER.resume
# A local variable of the main program takes nothing away from a global variable.
$all = [texts("global")]
local = $all[0]
3.times { GC.start }
Thread.pass until Thread.list.count(&:stop?) == 1
puts "ready"
$stdout.flush
sleep
