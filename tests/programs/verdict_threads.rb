# Many threads make strings and end: what they freed stays in their arenas. On SIGUSR1 it calls malloc_trim(0) and prints its anonymous
# resident size before and after, in kB; on SIGUSR2 a child with the same memory dumps core.
require "fiddle"

trim = Fiddle::Function.new(Fiddle::Handle::DEFAULT["malloc_trim"], [Fiddle::TYPE_SIZE_T], Fiddle::TYPE_INT)
$stdout.sync = true

def anonymous
  File.read("/proc/self/status")[/RssAnon:\s+(\d+)/, 1].to_i
end

24.times.map do |n|
  Thread.new do
    40.times { |i| Array.new(200) { |j| "x" * (200 + (i * 7919 + j * 104_729 + n * 31) % 24_000) } }
  end
end.each(&:join)
GC.start
sleep 3.5 # Ruby keeps native threads for 3 s

asked = []
trap("USR1") { asked << :trim }
trap("USR2") { asked << :core }
anonymous
puts "ready"
loop do
  sleep 0.05 while asked.empty?
  if asked.shift == :trim
    before = anonymous
    trim.call(0)
    puts "#{before} #{anonymous}"
  else
    child = fork { Process.kill("ABRT", Process.pid) && sleep }
    Process.wait(child)
    puts "dumped"
  end
end
