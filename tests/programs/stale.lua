-- Blocks of tables, functions and variables are freed while they refer to orders, and are used again. Then 250 orders are dropped while
-- the collector is stopped: each is in a cycle with a function. 250 others are kept. Prints "dropped 250 kept 250" and "ready".
io.stdin:setvbuf("no")
io.stdout:setvbuf("no")
Order = {}
Order.__index = Order

local function make(number)
  local order = setmetatable({ id = number, items = { number, number + 1, number + 2 } }, Order)
  local calls = 0
  order.next = function()
    calls = calls + 1
    return order.id + calls
  end
  return order
end

kept = {}
for number = 1, 3000 do
  local order = make(number)
  if number % 3 == 0 then
    kept[#kept + 1] = order
  end
end
kept = {}
collectgarbage()
collectgarbage()
collectgarbage("stop")
for number = 1, 250 do
  make(number)
end
for number = 1, 250 do
  kept[number] = make(number)
end
-- Tables whose elements are partly nil, and closures with one or no variable, use freed blocks too.
others = {}
for number = 1, 40 do
  local other = {}
  for place = 1, 20 do
    other[place] = { name = place, closed = number % 2 == 0 }
    other[place].call = function()
      return other
    end
  end
  others[number] = other
end
local function sweep(depth)
  local a, b, c, d, e, f, g, h = depth, depth, depth, depth, depth, depth, depth, depth
  return depth > 0 and sweep(depth - 1) + a + b + c + d + e + f + g + h or 0
end
sweep(100)
io.write("dropped 250 kept 250\n")
io.write("ready\n")
io.read("*n") -- has no large buffer on the stack of C, where words of earlier calls remain
