# A cache that grows among others. Reads numbers from standard input, a line each: adds as many sessions, each a Hash with a string, and
# makes as many strings that do not stay. Prints how many objects of each kind it holds.
class Session
  def initialize(user)
    @cart = Hash.new
    @note = "session #{user}, of a length that needs a block of its own, #{'x' * 80}"
  end
end

class Store
  SESSIONS = []
  NAMES = (0...2000).map { |n| "a name that is longer than a slot of Ruby's heap can embed, number #{n}, #{'y' * 300}" }
end
$settings = { "first" => "value" }
$stdout.sync = true
puts "ready"
loop do
  count = ($stdin.gets or break).to_i
  count.times { |n| "#{n}" * 40 }
  count.times { |n| Store::SESSIONS << Session.new(n) }
  GC.start
  puts "SESSIONS #{Store::SESSIONS.size}"
  puts "ready"
end
