# Collections of every kind of variable, of which one grows. Reads lines from standard input, each the name of one and a number of elements
# to add to it; prints the length of every one, by name. Each element is a String with a block of its own.
require "set"

$cache = []
$sizes = {}
$old = []
$old.concat((0...300).map(&:to_s))
@kept = []

module Shop
  CACHE = {}
  SEEN = Set.new
  PAIR = [1, 2]
  @queue = []
  @@prices = {}

  class Cart
    ITEMS = (0...700).to_a
    attr_reader :lines, :index

    def initialize
      @total = 0.5
      @lines = []
      @index = {}
      @note = "a cart"
    end
  end

  def self.all
    { "Shop.@queue" => @queue, "Shop.@@prices" => @@prices }
  end
end

CART = Shop::Cart.new

FOUND = {
  "$cache" => $cache, "$sizes" => $sizes, "$old" => $old, "@kept" => @kept, "Shop::CACHE" => Shop::CACHE, "Shop::SEEN" => Shop::SEEN,
  "Shop::PAIR" => Shop::PAIR, "Shop::Cart::ITEMS" => Shop::Cart::ITEMS, "CART.@lines" => CART.lines, "CART.@index" => CART.index, **Shop.all
}

$stdout.sync = true
puts "ready"
while (line = $stdin.gets)
  name, count = line.split
  to = FOUND.fetch(name)
  count.to_i.times do
    value = "#{name} has element number #{to.size}, #{'z' * 700}"
    to.is_a?(Hash) ? to[to.size] = value : to << value
  end
  $old.shift
  GC.start
  FOUND.each { |each, value| puts "#{each} #{value.size}" }
  puts "ready"
end
