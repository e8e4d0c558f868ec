# Two instance variables of an object refer to the same sessions. The argument is their number.
class Session
  def initialize(number)
    @number = number
    @data = "x" * 500 + number.to_s
  end
end

class Registry
  def initialize
    @by_id = {}
    @recent = []
  end

  def add(number)
    session = Session.new(number)
    @by_id[number] = session
    @recent << session
  end
end

REGISTRY = Registry.new
ARGV[0].to_i.times { |number| REGISTRY.add(number) }
$stdout.puts "ready"
$stdout.flush
sleep 3600
