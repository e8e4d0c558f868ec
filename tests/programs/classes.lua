-- Objects of a class that only local variables name, in blocks of different sizes, and suspended coroutines. Prints "ready".
local Session = {}
Session.__index = Session
local mt = {}

function Session.new(id)
  return setmetatable({ id = id, text = "session number " .. id }, Session)
end

local holes = {}
for number = 1, 6000 do -- freed blocks of about the size of a table
  holes[number] = string.rep("x", 30 + number % 24) .. number
end
for number = 1, 6000, 2 do
  holes[number] = nil
end
collectgarbage()

sessions = {}
for number = 1, 6000 do
  sessions[number] = Session.new(number)
end

points = {}
for number = 1, 100 do
  points[number] = setmetatable({ number }, mt)
end

local waiting = {}
local function answer(number)
  local request = { number, "request " .. number }
  coroutine.yield(#request)
  return request
end
for number = 1, 40 do
  waiting[number] = coroutine.create(answer)
  coroutine.resume(waiting[number], number)
end
holes = nil

function serve()
  collectgarbage()
  io.stdout:setvbuf("no")
  io.write("ready\n")
  io.read("*a")
  return #waiting, mt
end
serve()
