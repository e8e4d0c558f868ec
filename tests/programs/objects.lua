-- Objects of Lua: 300 orders in a local table, and 200 points and 50 closures in global ones. With the argument "drop", 150 pairs of
-- orders that refer to each other are dropped while the collector is stopped. Prints "bytes NUMBER" and "ready".
local kept = {}
points = {}
Order = {}
Order.__index = Order

function Order.new(number)
  return setmetatable({ number = number, lines = { "first " .. number, "second " .. number } }, Order)
end

Point = {}
Point.__index = Point

function keep(number)
  kept["number " .. number] = Order.new(number)
end

for number = 1, 300 do
  keep(number)
end
for number = 1, 200 do
  points[number] = setmetatable({ x = number, y = number }, Point)
end
handlers = {}
for number = 1, 50 do
  handlers[number] = function()
    return number + #points
  end
end
collectgarbage()
collectgarbage("stop")
function drop()
  for number = 1, 150 do
    local one, other = Order.new(number), Order.new(number)
    one.next, other.next = other, one
  end
end
if arg[1] == "drop" then
  drop()
end
local function sweep(depth)
  local a, b, c, d, e, f, g, h = depth, depth, depth, depth, depth, depth, depth, depth
  return depth > 0 and sweep(depth - 1) + a + b + c + d + e + f + g + h or 0
end
sweep(100)
io.stdout:setvbuf("no")
io.write("bytes " .. collectgarbage("count") * 1024 .. "\n")
io.write("ready\n")
io.read("*a")
