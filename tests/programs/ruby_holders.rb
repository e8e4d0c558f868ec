# Objects that are each kept alive by exactly one holder: a constant, a class variable, a closure, a local variable of a method … It prints
# the class and address of each, then "ready", and waits.
require "json"
require "objspace"

JOBS = Queue.new
LOG = File.open(File::NULL, "wb")

module Registry
  CACHE = {}
  Pair = Struct.new(:left, :right)
  class << self
    attr_accessor :by_id
  end
end

class App
  @@hooks = []
  @@pairs = []
  def self.hooks; @@hooks; end
  def self.pairs; @@pairs; end
end

class Session
  attr_accessor :peer, :other
end

%w[Constant Class_variable Class_instance Global Member Element Key Wide Closure Fiber_local Thread_variable Other_local Other_variable Captured Captured_outside Of_block Of_singleton Queued Limited Local Of_thread At_exit Nobody].each { |name| Object.const_set(name, Class.new) }

def tell(one)
  puts "#{one.class} #{JSON.parse(ObjectSpace.dump(one))["address"]}"
  one
end

def fill
  300.times { |number| Registry::CACHE["key #{number}"] = Session.new }
  Registry::CACHE["the one"] = tell(Constant.new)
  Registry.by_id = { symbol: tell(Class_instance.new), 17 => nil }
  App.pairs << Registry::Pair.new(1, tell(Class_variable.new))
  $table = { 17 => [tell(Global.new)] }
  Registry::CACHE["key 7"].peer = 1
  Registry::CACHE["key 7"].other = tell(Member.new)
  $many = Array.new(100) { |number| number == 41 ? tell(Element.new) : nil }
  $keys = { tell(Key.new) => 1 }
  $wide = Session.new
  12.times { |number| $wide.instance_variable_set("@field#{number}", nil) }
  $wide.instance_variable_set(:@last, tell(Wide.new))
end

def close
  held = tell(Closure.new)
  App.hooks << proc { held }
end

# Write the address of a text into the buffer of LOG, which is written to the file later.
def log_address_of(text)
  slot = Integer(JSON.parse(ObjectSpace.dump(text))["address"], 16)
  LOG.write(File.open("/proc/self/mem", "rb") { |memory| memory.pread(8, slot + 24) })
end

def capture
  outside = tell(Captured_outside.new)
  [7].each do |number|
    first = second = nil
    inside = [tell(Captured.new)]
    $handler = ->(argument) { [argument, number, first, second, inside, outside] }
  end
end

def define
  remembered = [tell(Of_block.new)]
  Session.send(:define_method, :remember) { |one| remembered << one }
end

def define_for_one
  of_one = tell(Of_singleton.new)
  $one = Session.new
  $one.define_singleton_method(:keep) { of_one }
end

def queue
  12.times { |number| JOBS << (number == 7 ? tell(Queued.new) : number) }
  $limited = SizedQueue.new(3)
  $limited << tell(Limited.new)
end

def clean_up_later
  left_over = tell(At_exit.new)
  2.times { at_exit { left_over } }
end

def consume
  backlog = Queue.new
  500.times { |number| backlog << "#{number} #{"x" * 1000}" }
  requests = ["#{"y" * 1000} 1", "#{"y" * 1000} 2"].each
  Thread.stop
  [backlog.pop, requests.next]
end

def collect_and_wait
  mine = tell(Local.new)
  text = "x" * 300_000
  log_address_of(text)
  3.times { GC.start }
  puts "ready"
  $stdout.flush
  sleep
  [mine, text]
end

def set_variables_of_thread
  Thread.current[:kept] = [tell(Fiber_local.new)]
  Thread.current.thread_variable_set(:pending, tell(Thread_variable.new))
  Thread.current.thread_variable_set("second one", nil)
end

def wait_in_thread
  Thread.current[:batch] = tell(Other_local.new)
  12.times { |number| Thread.current.thread_variable_set("variable #{number}", [number]) }
  Thread.current.thread_variable_set("last one", [tell(Other_variable.new)])
  own = tell(Of_thread.new)
  Thread.stop
  own
end

def start_worker
  deferred = Queue.new
  500.times { |number| deferred << "#{number} #{"z" * 1000}" }
  Thread.new { loop { Thread.stop; deferred.pop } }
end

def suspend_fiber
  $suspended = Fiber.new do
    Thread.current[:unsent] = Array.new(400) { |number| "#{number} #{"u" * 1000}" }
    Fiber.yield
  end
  $suspended.resume
end

def generate_classes
  Object.const_set(:GENERATED, Array.new(1200) { |number| Class.new { @plan = ["#{number} #{"p" * 1000}"] } })
  GENERATED[7].instance_variable_set(:@plan, Array.new(1500) { |number| "#{number} #{"q" * 1000}" })
end

def wait_with_block
  pending = Queue.new
  size = -> { pending.size }
  Thread.stop
  size.call
end

generate_classes
fill
close
capture
define
define_for_one
queue
set_variables_of_thread
clean_up_later
Thread.new { wait_in_thread }
Thread.new { consume }
start_worker
suspend_fiber
Thread.new { wait_with_block }
Thread.pass until Thread.list.count(&:stop?) == 4
collect_and_wait
