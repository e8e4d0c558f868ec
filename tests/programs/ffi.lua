-- Objects of FFI of several types. Prints "ready".
local ffi = require("ffi")
ffi.cdef([[
struct point { double x, y; };
typedef struct { int number; char name[20]; } item_t;
typedef union value { int number; double real; } value;
]])
objects = {}
for number = 1, 100 do
  local point = ffi.new("struct point", number, number)
  local made = { point, ffi.new("item_t"), 1ULL * number, ffi.cast("struct point*", point), ffi.new("const char*[2]"), ffi.new("value") }
  for _, one in ipairs(made) do
    objects[#objects + 1] = one
  end
end
collectgarbage()
io.stdout:setvbuf("no")
io.write("ready\n")
io.read("*a")
