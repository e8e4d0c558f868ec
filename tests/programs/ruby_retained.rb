# For each kind of holder, texts that only this holder retains. It prints the number of the texts of each kind and the line of its holder,
# then "ready", and waits.
require "stringio"

COUNT, BYTES, THREADS = 3000, 2000, 8
$procs, $methods, $bindings, $outputs, $noted, $single = [], [], [], [], [], []
$handlers = {}

class Router; end

def texts(kind)
  Array.new(COUNT) { |number| (kind + number.to_s).ljust(BYTES, "x") }
end

def close(text)
  -> { text }
end

# The block of class_eval has no local variables. Its environment is between those of `define_method` and `route`.
def route(number, text)
  Router.class_eval { define_method("route_#{number}") { text } }
end

def keep_binding(text)
  $bindings << binding
end

def output(text)
  $outputs << StringIO.new(text)
end

def trap_with(texts)
  Signal.trap("USR2") { texts.size }
end

def buffer_in_threads(texts)
  texts.each_slice(COUNT / THREADS) { |some| Thread.new { Thread.current[:batch] = some; Thread.stop } }
end

def finalize(text)
  object = Object.new
  ObjectSpace.define_finalizer(object, proc { text.size })
end

# The text is a variable of a String, which has no memory for variables.
def annotate(text)
  noted = String.new("short")
  noted.instance_variable_set(:@note, text)
  $noted << noted
end

# The blocks that sessions register and the singleton methods of the sessions capture the same text.
def register(number, text)
  session = Object.new
  session.define_singleton_method(:call) { text.size }
  ($handlers["event #{number % 20}"] ||= []) << -> { session.call }
end

def single(text)
  object = Object.new
  object.define_singleton_method(:size) { text.size }
  $single << object
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
texts("route").each_with_index { |text, number| route(number, text) }
texts("binding").each { |text| keep_binding(text) }
texts("output").each { |text| output(text) }
texts("noted").each { |text| annotate(text) }
texts("session").each_with_index { |text, number| register(number, text) }
texts("single").each { |text| single(text) }
trap_with(texts("trap"))
buffer_in_threads(texts("buffer"))
Thread.new { in_thread }
FIBER = Fiber.new { in_fiber }
FIBER.resume
# A local variable of the main program does not reduce what a global variable retains.
$all = [texts("global")]
local = $all[0]
# Blocks that were created in the main program refer to its local variables, which retain what they retain.
kept = texts("main")
at_exit { kept.size }
Signal.trap("USR1") { kept.clear }
3.times { GC.start }
Thread.pass until Thread.list.count(&:stop?) == 1 + THREADS
puts "ready"
$stdout.flush
sleep
