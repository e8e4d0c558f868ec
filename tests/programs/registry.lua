-- 50 suspended coroutines in a global table, and 300 strings of 1,000 bytes in a table that the registry
-- refers to, as C code keeps them. The local variable that had this table is nil. With an argument: so many global variables. Prints "ready".
waiting = {}
for number = 1, 50 do
  waiting[number] = coroutine.create(function()
    coroutine.yield()
  end)
  coroutine.resume(waiting[number])
end
local kept = {}
for number = 1, 300 do
  kept[number] = ("x"):rep(1000) .. number
end
debug.getregistry()[kept] = true
kept = nil
for number = 1, tonumber(arg[1] or 0) do _G["cache" .. number] = { {} } end
collectgarbage()
collectgarbage()
io.stdout:setvbuf("no")
io.write("ready\n")
io.read("*a")
