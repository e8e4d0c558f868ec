/* Blocks of LuaJIT's allocator. Prints "used ADDRESS SIZE" for each block that LuaJIT has requested since its state exists, "freed
 * ADDRESS" for each that it freed, and "early NUMBER": how many blocks it freed that are older. The script prints "kept ADDRESS" or
 * "garbage ADDRESS" for its objects. Prints "light ADDRESS KIND" for blocks of malloc to which only userdata refer. With the
 * argument "bare", only the state exists. */
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST (1 << 20)

static struct { uintptr_t hidden; size_t size; } table[MOST]; /* hashed; ~address, so that it is not a reference; size 0: freed */
static lua_Alloc inner;
static unsigned early;

static unsigned place(void *at) {
    uintptr_t hidden = ~(uintptr_t)at;
    unsigned number = (unsigned)(hidden * UINT64_C(0x9E3779B97F4A7C15) >> 44);
    while (table[number].hidden && table[number].hidden != hidden)
        number = (number + 1) % MOST;
    return number;
}

static void *record(void *state, void *block, size_t before, size_t after) {
    if (block) {
        unsigned number = place(block);
        early += !table[number].hidden;
        table[number].hidden = ~(uintptr_t)block;
        table[number].size = 0;
    }
    void *made = inner(state, block, before, after);
    if (made && after) {
        unsigned number = place(made);
        table[number].hidden = ~(uintptr_t)made;
        table[number].size = after;
    }
    return made;
}

static const char script[] =
    "io.stdout:setvbuf('no')\n"
    "local ffi = require('ffi')\n"
    "ffi.cdef('typedef struct { double x, y; char name[40]; } point_t;')\n"
    "local function say(what, object) print(what .. ' ' .. (tostring(object):match('0x%x+'))) end\n"
    "local kept, by_name, threads, data = {}, {}, {}, {}\n"
    "shared = setmetatable({}, { __index = function() return kept end })\n"
    "for i = 1, 4000 do\n"
    "  local one = { number = i, text = ('text %d '):rep(i % 7):format(i, i, i, i, i, i, i), { i, i + 1, i + 2 } }\n"
    "  kept[#kept + 1] = one; say('kept', one); say('kept', one[1])\n"
    "  if i % 3 == 0 then kept[#kept] = function() return one end; say('kept', kept[#kept]) end\n"
    "  if i % 5 == 0 then by_name['name ' .. i] = newproxy(true) end\n"
    "  if i % 50 == 0 then\n"
    "    local thread = coroutine.create(function(a) local inside = { a }; say('kept', inside); coroutine.yield(inside); return inside end)\n"
    "    coroutine.resume(thread, i); threads[#threads + 1] = thread; say('kept', thread)\n"
    "  end\n"
    "  if i % 40 == 0 then data[#data + 1] = ffi.new('point_t', i, i); data[#data + 1] = ffi.new('char[?]', i) end\n"
    "end\n"
    "big = { ('x'):rep(300000), ffi.new('int[?]', 100000) }\n"
    "for i = 1, 3000 do local gone = { i, tostring(i) } end\n"
    "collectgarbage() collectgarbage() collectgarbage('stop')\n"
    "local function drop()\n"
    "  for i = 1, 500 do\n"
    "    local one, other = { i }, { name = 'other ' .. i }\n"
    "    one.next, other.next = other, one\n"
    "    say('garbage', one); say('garbage', other)\n"
    "  end\n"
    "end\n"
    "drop()\n"
    "local elements, fields, keys, upvalues, removed, boxes = {}, {}, {}, {}, {}, {}\n"
    "local function lights()\n"
    "  for i = 1, 40 do\n"
    "    elements[i] = native('kept', i % 2 == 0); fields['f' .. i] = native('kept'); keys[native('kept', i % 4 == 0)] = i\n"
    "    boxes[i] = box(i)\n"
    "    local captured = native('kept'); upvalues[i] = function() return captured end\n"
    "    local key = native('lost'); removed[key] = i; removed[key] = nil; removed['f' .. i] = native('lost'); removed['f' .. i] = nil\n"
    "  end\n"
    "end\n"
    "lights()\n"
    "local function sweep(depth) local a, b, c, d, e = depth, depth, depth, depth, depth\n"
    "  return depth > 0 and sweep(depth - 1) + a + b + c + d + e or 0 end\n"
    "sweep(100)\n"
    "return function() return kept, by_name, threads, data, sweep, elements, fields, keys, upvalues, removed, boxes end\n";

/* native(KIND, large): a light userdata of a block in the heap or, if `large` is true, in a mapping; addresses of both sorts differ in
 * their upper bits. */
static int native(lua_State *lua) {
    void *block = malloc(lua_toboolean(lua, 2) ? 1 << 18 : 400);
    printf("light %p %s\n", block, luaL_checkstring(lua, 1));
    lua_pushlightuserdata(lua, block);
    return 1;
}

/* box(SIZE): a userdata of SIZE words, the last of which refers to a block. */
static int box(lua_State *lua) {
    int size = (int)luaL_checkinteger(lua, 1);
    void **made = lua_newuserdata(lua, (size_t)size * sizeof *made);
    memset(made, 0, (size_t)size * sizeof *made);
    made[size - 1] = malloc(400);
    printf("light %p kept\n", made[size - 1]);
    return 1;
}

int main(int count, char **words) {
    lua_State *lua = luaL_newstate();
    void *state;
    if (count == 1) {
        inner = lua_getallocf(lua, &state);
        lua_setallocf(lua, record, state);
        luaL_openlibs(lua);
        lua_register(lua, "native", native);
        lua_register(lua, "box", box);
        if (luaL_dostring(lua, script)) {
            fprintf(stderr, "%s\n", lua_tostring(lua, -1));
            return 1;
        }
        printf("bytes %zu\n", (size_t)lua_gc(lua, LUA_GCCOUNT, 0) * 1024 + (size_t)lua_gc(lua, LUA_GCCOUNTB, 0));
    } else if (strcmp(words[1], "bare"))
        return 1;
    for (unsigned number = 0; number < MOST; number++)
        if (table[number].hidden && table[number].size)
            printf("used %#zx %zu\n", (size_t)~table[number].hidden, table[number].size);
        else if (table[number].hidden)
            printf("freed %#zx\n", (size_t)~table[number].hidden);
    printf("early %u\nready\n", early);
    fflush(stdout);
    pause();
}
