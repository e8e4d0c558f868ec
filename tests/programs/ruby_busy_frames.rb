# Executes Ruby methods of all kinds. At SIGUSR1 the extension that is named stores its frames; they are printed after each round.
# With a second argument, the program prints its own backtrace in several places instead, and stops itself there.
require ARGV[0] unless ARGV[0] == "-"
def print_frames; end if ARGV[0] == "-"

$stops = ARGV[1].to_i

def park
  return if $stops.zero?
  $stops -= 1
  return unless ($stops % 7).zero?
  puts caller(1)
  puts "end"
  $stdout.flush
  Process.kill(:STOP, $$)
end

module Shapes
  class Worker
    def run(count)
      count.times.map { |number| step(number) }.sort_by { |one|
        -one
      }
    end

    def step(number)
      [number, 3, 2].max_by do |one|
        park
        one %
          7
      end
    end

    def <=>(other)
      object_id <=> other.object_id
    end

    define_method(:défini) { |count| (1..count).inject { |sum, one| sum + one } }

    def method_missing(name, *arguments)
      park
      name.to_s.length + arguments.length
    end

    def respond_to_missing?(*)
      true
    end
  end
end

def fibonacci(number)
  return number if number < 2

  fibonacci(number - 1) +
    fibonacci(number - 2)
end

def fails(depth)
  raise ArgumentError, "the end" if depth.zero?

  begin
    fails(depth - 1)
  ensure
    park
  end
rescue ArgumentError => e
  raise e unless depth == 6

  (1..depth).sum
end

def pairs
  return to_enum(:pairs) unless block_given?

  3.times { |one| yield one, one }
end

def work(worker)
  [3, 1, 2, 8, 5, 7, 6, 4].sort { |a, b| park; a <=> b }
  table = Hash.new { |hash, key| hash[key] = fibonacci(key % 5) }
  fibonacci(9)
  worker.run(8)
  worker.défini(9)
  worker.missing(1, 2)
  fails(6)
  pairs.each_slice(2).to_a
  pairs.with_index { |one, at| table[at] + one.first }
  "a-b-c".gsub(/[a-z]/) { |letter| letter.upcase }
  [worker, worker.dup].min
  catch(:found) { 5.times { |one| throw :found if one == 3 } }
  Struct.new(:one, :other).new(1, 2).each { |one| one.to_s }
  fiber = Fiber.new { 3.times { |one| Fiber.yield fibonacci(one + 3) } }
  3.times { fiber.resume }
  eval("park; [1, 2].each { |one| fibonacci(one); [1].each { park } }", binding, "made.rb", 40)
end

threads = [Thread.new { sleep }, Thread.new { Queue.new.pop }]
sleep 0.01 until threads.all? { |one| one.status == "sleep" }
$stdout.sync = true
puts "ready"
worker = Shapes::Worker.new
loop do
  work(worker)
  print_frames
end
