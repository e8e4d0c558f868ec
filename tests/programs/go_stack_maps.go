// Creates objects. To some, only variables on stacks of goroutines refer; the goroutines use some of these variables again. To others, only
// pointers or only integers in other objects refer. Prints "object NUMBER ADDRESS KIND" for each object, and "ready". After it has read a
// byte of input, it runs the collector. It then prints "freed NUMBER" for each of these objects that was garbage, "after" and the number of
// all freed objects, and "ready". Arguments: the number of goroutines of each kind, and the number of objects of a list.
package main

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

type Object struct {
	Number int
	Next   *Object
	Data   [13]uint64
}

type record struct {
	number int
	kind   string
	hidden uintptr // its address, disguised
}

type holder struct {
	count int
	first *Object
	text  string
	last  *Object
}

type large struct {
	all [400]*Object
}

type noted struct {
	text    string
	address uintptr
	next    *Object
}

type wide struct {
	addresses [80]uintptr
	all       [4]*Object
}

var (
	small   []*noted
	wides   []*wide
	table   []noted
	named   map[string]noted
	records []record
	freed   []int32
	started int64
	never   = make(chan int)
	total   int64
	stop    int32
	pipe    [2]int
	list    []*Object
)

// Returns an object whose address the program prints.
//
//go:noinline
func object(kind string) *Object {
	number := len(records)
	made := &Object{Number: number}
	runtime.SetFinalizer(made, func(one *Object) { atomic.StoreInt32(&freed[one.Number], 1) })
	records = append(records, record{number, kind, ^uintptr(reflect.ValueOf(made).Pointer())})
	return made
}

//go:noinline
func use(one *Object) { atomic.AddInt64(&total, int64(one.Number)) }

//go:noinline
func useHolder(one *holder) { atomic.AddInt64(&total, int64(one.count)) }

//go:noinline
func useLarge(one *large) { atomic.AddInt64(&total, int64(len(one.all))) }

//go:noinline
func wait() {
	atomic.AddInt64(&started, 1)
	<-never
}

func deadLocal() {
	one := object("dead local")
	use(one)
	wait()
}

func liveLocal() {
	one := object("live local")
	wait()
	use(one)
}

func liveAndDead() {
	a, b, c := object("first of three, used again"), object("second of three, not used again"), object("third of three, used again")
	use(a)
	use(b)
	wait()
	use(c)
	wait()
	use(a)
}

func deadStackObject() {
	one := holder{first: object("in a structure not used again"), last: object("in a structure not used again")}
	useHolder(&one)
	wait()
}

func liveStackObject() {
	one := holder{first: object("in a structure used again"), last: object("in a structure used again")}
	useHolder(&one)
	wait()
	useHolder(&one)
}

func largeStackObject() {
	var one large
	one.all[0], one.all[399] = object("in an array used again"), object("in an array used again")
	useLarge(&one)
	wait()
	useLarge(&one)
}

// The structure is alive through a pointer in another structure on the stack.
func chained() {
	inner := holder{first: object("in a structure that another one refers to")}
	outer := [2]*holder{nil, &inner}
	useHolders(&outer)
	wait()
	useHolders(&outer)
}

//go:noinline
func useHolders(all *[2]*holder) { useHolder(all[1]) }

//go:noinline
func arguments(a, b, c, d, e, f, g, h, i, j, k int, used, unused *Object) {
	use(unused)
	use(used)
	wait()
	use(used)
}

func stackArguments() {
	arguments(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, object("argument used again"), object("argument not used again"))
}

//go:noinline
func registerArguments(used, unused *Object) {
	use(unused)
	wait()
	use(used)
}

func deferred() {
	one := object("of a deferred function")
	defer func() { use(one) }()
	wait()
}

func deferredInLoop() {
	for range [3]int{} {
		one := object("of a function that was deferred in a loop")
		defer func() { use(one) }()
	}
	wait()
}

func deferredIf() {
	one := object("of a function that was deferred")
	if one.Number >= 0 {
		defer use(one)
	}
	wait()
}

func recovering() {
	one, other := object("used after a panic"), object("not used after a panic")
	defer func() {
		recover()
		wait()
		use(one)
	}()
	use(other)
	var none *Object
	use(none)
}

func captured() {
	one := object("captured")
	run := func() {
		wait()
		use(one)
	}
	call(run)
}

//go:noinline
func call(run func()) { run() }

func reflected() {
	one := object("captured by a function of reflect")
	made := reflect.MakeFunc(reflect.TypeOf(use), func(all []reflect.Value) []reflect.Value {
		wait()
		use(one)
		return nil
	})
	made.Interface().(func(*Object))(object("argument of a function of reflect"))
}

func (one *Object) Hold(other *Object) {
	use(other)
	wait()
	use(one)
}

func reflectedMethod() {
	one := object("receiver of a method of reflect")
	reflect.ValueOf(one).MethodByName("Hold").Interface().(func(*Object))(object("argument of a method of reflect"))
}

func inSystemCall() {
	one, other := object("used after a system call"), object("not used after a system call")
	use(other)
	var data [1]byte
	atomic.AddInt64(&started, 1)
	syscall.Read(pipe[0], data[:])
	use(one)
}

func recursive(depth int) {
	one, other := object("of a recursive call, used again"), object("of a recursive call, not used again")
	use(other)
	if depth > 0 {
		recursive(depth - 1)
	} else {
		wait()
	}
	use(one)
}

func inInterface() {
	var one any = object("in an interface")
	all := []*Object{object("in a slice")}
	wait()
	use(one.(*Object))
	use(all[0])
}

func running() {
	one := object("of a goroutine that runs")
	atomic.AddInt64(&started, 1)
	for atomic.LoadInt32(&stop) == 0 {
		one.Data[0]++
	}
	use(one)
}

func startAt(one *Object) { wait(); use(one) }

func start(count int, kinds ...func()) {
	sum := atomic.LoadInt64(&started)
	for _, kind := range kinds {
		for range make([]int, count) {
			sum++
			go kind()
			for atomic.LoadInt64(&started) < sum { // one after another, as object is not synchronised
				time.Sleep(10 * time.Microsecond)
			}
		}
	}
}

//go:noinline
func fill(count int) {
	for at := 0; at < count; at++ {
		list = append(list, &Object{Number: at, Next: &Object{}})
	}
	for at := range list[count/2:] {
		list[count/2+at] = nil
	}
}

func address(of *Object) uintptr { return uintptr(unsafe.Pointer(of)) }

// Go stores the maps of pointers differently for objects of up to 512 bytes, for objects of up to 32 KiB, and for larger objects.
//
//go:noinline
func note(count int) {
	table, named = make([]noted, 1000+count), map[string]noted{}
	for at := 0; at < count; at++ {
		small = append(small, &noted{"", address(object("integer in a small object")), object("pointer in a small object")})
		one := &wide{}
		one.addresses[79], one.all[3] = address(object("integer in an object")), object("pointer in an object")
		wides = append(wides, one)
		table[1000+at] = noted{"", address(object("integer in a large object")), object("pointer in a large object")}
		named[strconv.Itoa(at)] = noted{"", address(object("integer in a map")), object("pointer in a map")}
	}
}

// Waits for a byte of input, without leaving the processor to other goroutines. Does not return if there is none.
//
//go:noinline
func read() {
	var data [1]byte
	for count := uintptr(0); count != 1; {
		count, _, _ = syscall.RawSyscall(syscall.SYS_READ, 0, uintptr(unsafe.Pointer(&data[0])), 1)
		if count == 0 {
			time.Sleep(time.Hour)
		}
	}
}

//go:noinline
func printFreed() {
	for last, now := -1, 0; last != now || now == 0; {
		time.Sleep(200 * time.Millisecond) // finalizers run in a goroutine of their own
		last, now = now, 0
		for at := range freed {
			now += int(atomic.LoadInt32(&freed[at]))
		}
	}
	for at := range freed {
		if atomic.LoadInt32(&freed[at]) != 0 {
			fmt.Println("freed", at)
		}
	}
}

func main() {
	count, _ := strconv.Atoi(os.Args[1])
	objects, _ := strconv.Atoi(os.Args[2])
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(1)
	syscall.Pipe(pipe[:])
	freed = make([]int32, 100*count)
	records = make([]record, 0, 100*count)
	fill(objects)
	note(count)
	start(count, deadLocal, liveLocal, liveAndDead, deadStackObject, liveStackObject, largeStackObject, chained, stackArguments,
		func() { registerArguments(object("register used again"), object("register not used again")) }, deferred, deferredInLoop,
		deferredIf, recovering, captured, reflected, reflectedMethod, inSystemCall, func() { recursive(3) }, inInterface,
		func() { startAt(object("argument of a goroutine")) })
	waitForOthers()
	start(count, running)
	one := object("of the goroutine that collects")
	for _, each := range records {
		fmt.Printf("object %d %#x %s\n", each.number, ^each.hidden, each.kind)
	}
	fmt.Println("ready")
	read()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	runtime.GC()
	runtime.ReadMemStats(&after)
	use(one)
	atomic.StoreInt32(&stop, 1)
	printFreed()
	fmt.Println("after", before.HeapObjects-after.HeapObjects)
	fmt.Println("ready")
	time.Sleep(time.Hour)
	runtime.KeepAlive(list)
	fmt.Println(small, wides, table, named)
}
