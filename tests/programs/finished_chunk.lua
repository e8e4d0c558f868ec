-- The chunk below has ended and is garbage. Lua keeps the record of its call, which has an address in its code. Prints "ready".
local function run()
  load("local sum = 0 for number = 1, 20 do sum = sum + number * 2 end collectgarbage('stop')")()
end
run()
io.stdout:setvbuf("no")
io.write("ready\n")
io.read("*a")
