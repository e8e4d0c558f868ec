-- Classes as libraries make them: the name is in a private field, in a field of the metatable, in a local table, or nowhere. Weak tables,
-- which refer to objects of Kept (also in `kept`), of Dropped and of Short, and to strings. Prints "ready".
collectgarbage("stop")
local function make(name) -- like middleclass
  local methods = {}
  methods.__index = methods
  return { name = name, __instanceDict = methods, new = function(self, number)
    return setmetatable({ number }, self.__instanceDict)
  end }
end
local function class() -- each class has the name of the same local variable
  local c = {}
  c.__index = c
  c.new = function(number)
    return setmetatable({ number }, c)
  end
  return c
end
local Account, Saving, Kept, Dropped = make("Account"), make("Saving"), make("Kept"), make("Dropped")
local M = { Node = class() }
local classes = { class(), class() }
classes[1].first = function() end
classes[2].second = function() end
classes[3] = class()
classes[3]._name = "pool.Leaf"

objects = {}
for number = 1, 100 do
  objects[#objects + 1] = Account:new(number)
  objects[#objects + 1] = Saving:new(number)
  objects[#objects + 1] = M.Node.new(number)
  for _, one in ipairs(classes) do
    objects[#objects + 1] = one.new(number)
  end
  objects[#objects + 1] = setmetatable({ number }, { __index = { get = function() end } })
end

kept, weak = {}, {}
for _, mode in ipairs({ "k", "v", "kv" }) do
  weak[mode] = setmetatable({}, { __mode = mode })
end
weak.list = setmetatable({}, { __mode = "v" })
local function fill(number)
  local both = { Kept:new(number), Dropped:new(number) }
  kept[number] = both[1]
  for _, one in ipairs(both) do
    weak.k[one], weak.v[{}], weak.kv[one] = "text " .. number, one, one
    weak.list[#weak.list + 1] = one
  end
end
for number = 1, 200 do
  fill(number)
end
local Short = make("Short")
for number = 1, 100 do
  weak[number] = setmetatable({ Short:new(number), "text of " .. number }, { __mode = "v" }) -- LuaJIT stores the array in the block of the table
end

local function scrub(depth) -- overwrites stale words on the stacks
  local a, b, c, d, e, f = 0, 0, 0, 0, 0, 0
  return depth > 0 and scrub(depth - 1) + a + b + c + d + e + f or 0
end
scrub(100)
io.stdout:setvbuf("no")
io.write("ready\n")
io.read("*a")
print(Account, Saving, M)
