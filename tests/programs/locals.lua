-- Local variables that no function uses: of the main file, of a function that runs, and of a suspended coroutine. Prints "ready".
do
  local gone = {}
  for number = 1, 300 do
    gone[number] = { number }
  end
end
local unused, sessions = 1, {}
for number = 1, 500 do
  sessions["session " .. number] = { number }
end
local wait = coroutine.create(function(first, second)
  local queue = {}
  for number = first, second do
    queue[number] = { "job " .. number }
  end
  coroutine.yield(#queue)
  return queue
end)
coroutine.resume(wait, 1, 400)

local function serve(limit)
  local requests = {}
  for number = 1, limit do
    requests[number] = { "request " .. number }
  end
  io.stdout:setvbuf("no")
  io.write("ready\n")
  io.read("*a")
  return requests, unused
end

local results = { serve(600) }
io.write(#results, tostring(sessions), tostring(wait))
