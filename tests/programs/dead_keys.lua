-- Elements of tables are removed. Each key is a table that refers to itself, so that it is garbage. Prints the number of keys, then "ready".
collectgarbage("stop")
Key = {}
kept = {}
local total = 0

local function fill(number)
    local some = { name = number }
    for at = 1, number do
        local key = setmetatable({ at = at }, Key)
        key.self = key
        some[key] = true
    end
    for key in pairs(some) do
        if key ~= "name" then
            some[key] = nil
        end
    end
    kept[#kept + 1] = some
    total = total + number
end

for _, number in ipairs({ 1, 3, 100, 300, 20000 }) do
    fill(number)
end
local function sweep(depth)
    local a, b, c, d, e, f, g, h = 0, 0, 0, 0, 0, 0, 0, 0
    return depth > 0 and sweep(depth - 1) + a + b + c + d + e + f + g + h or 0
end
sweep(60)
print(total)
print("ready")
io.stdout:flush()
io.read("*l")
