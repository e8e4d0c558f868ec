<?php
// A healthy program that uses most of the language and of its library: `find` must report nothing. Prints "ready".
declare(strict_types=1);
namespace App;
#[\Attribute] final class Tag { public function __construct(public readonly string $name) {} }
enum Suit: string { case Hearts = 'H'; case Spades = 'S'; public static function of(string $s): self { return self::from($s); } public function label(): string { return ucfirst(strtolower($this->name)); } }
trait Counts { private static int $n = 0; public static function next(): int { return ++self::$n; } abstract public function id(): int; }
interface Shape { const SIDES = 0; public function area(): float; }
abstract class Base implements Shape, \JsonSerializable { use Counts; protected ?self $parent = null; public function id(): int { static $ids = []; $ids[] = self::next(); return end($ids); } public function jsonSerialize(): mixed { return ['area' => $this->area()]; } public function __toString(): string { return json_encode($this); } }
final class Square extends Base { public function __construct(private readonly float $side, public array $tags = []) { $this->id(); } public function area(): float { return $this->side ** 2; } public static function create(float ...$sides): array { return array_map(fn(float $s): static => new static($s, ['x' => $s]), $sides); } }
#[Tag('svc')] class Service { private array $handlers = []; private \SplObjectStorage $seen; private \WeakMap $cache; public function __construct() { $this->seen = new \SplObjectStorage; $this->cache = new \WeakMap; }
  public function on(string $e, callable $h): void { $this->handlers[$e][] = $h; } public function fire(string $e, object $o): void { foreach ($this->handlers[$e] ?? [] as $h) $h($o); $this->seen->attach($o); $this->cache[$o] = ['meta' => $e]; } public function none(): ?string { return null; } public function union(int|string|null $x): int|false { return is_int($x) ? $x : false; } }
function gen(int $n): \Generator { for ($i = 0; $i < $n; $i++) { $got = yield $i => "v$i"; if ($got) yield from inner($got); } }
function inner(string $s): iterable { yield strrev($s); }
$svc = new Service; $svc->on('a', function (object $o) use (&$total, $svc): void { $total = ($total ?? 0) + $o->area(); }); $svc->on('a', [Square::class, 'create'](...) instanceof \Closure ? fn($o) => null : 'strlen');
$squares = Square::create(...range(1.0, 60.0)); foreach ($squares as $s) $svc->fire('a', $s);
$g = gen(5); foreach ($g as $k => $v) { if ($k == 2) { $g->send('hello'); break; } } 
$fiber = new \Fiber(function (string $x): string { $y = \Fiber::suspend($x . '!'); return $y . '?'; }); $f1 = $fiber->start('hi');
$fixed = \SplFixedArray::fromArray(range(1, 500)); $heap = new \SplMinHeap; foreach ([3,1,2] as $x) $heap->insert([$x, "p$x"]); $ll = new \SplDoublyLinkedList; for ($i=0;$i<50;$i++) $ll->push("item $i"); $q = new \SplPriorityQueue; $q->insert('a', 1); $ao = new \ArrayObject(['a'=>1,'b'=>[1,2,3]]); $it = $ao->getIterator(); $it->next();
$date = new \DateTimeImmutable('2024-02-03 04:05:06', new \DateTimeZone('Europe/Paris')); $period = new \DatePeriod($date, new \DateInterval('P1D'), 10); $days = iterator_to_array($period);
try { throw new \RuntimeException('x', 3, new \LogicException('inner')); } catch (\Exception $e) { $trace = $e->getTraceAsString(); }
preg_match_all('/(?<word>\w+)/u', 'some words go here', $m, PREG_SET_ORDER); $refs = [1,2,3]; foreach ($refs as &$r) { $r *= 2; } unset($r);
$str = str_repeat('abc', 1000); $parts = explode('b', $str); usort($parts, fn($a, $b) => strcmp($a, $b)); $json = json_decode('{"a":{"b":[1,2,{"c":null}]}}'); $arr = json_decode('{"a":{"b":[1,2,{"c":null}]}}', true);
if (class_exists('PDO') && in_array('sqlite', \PDO::getAvailableDrivers())) { $db = new \PDO('sqlite::memory:'); $db->exec('create table t(a,b)'); $st = $db->prepare('insert into t values(?,?)'); for ($i=0;$i<20;$i++) $st->execute([$i, "row $i"]); $rows = $db->query('select * from t')->fetchAll(\PDO::FETCH_OBJ); }
if (class_exists('DOMDocument')) { $doc = new \DOMDocument; $doc->loadXML('<a><b c="1">t</b><b/></a>'); $xp = new \DOMXPath($doc); $nodes = $xp->query('//b'); $sx = simplexml_load_string('<r><i>1</i><i>2</i></r>'); }
$anon = new class($svc) { public function __construct(private Service $s) {} public function __get($n) { return $this->s; } }; $bound = \Closure::bind(function () { return $this->handlers; }, $svc, Service::class); $handlers = $bound(); $ref = new \ReflectionClass(Service::class); $attrs = $ref->getAttributes(); $inst = $attrs[0]->newInstance(); $methods = $ref->getMethods();
$stream = fopen('php://temp', 'w+'); fwrite($stream, str_repeat('line of text\n', 500)); rewind($stream); $line = fgets($stream); $ctx = stream_context_create(['http' => ['method' => 'GET']]); ob_start(); echo 'buffered'; 
$GLOBALS['dyn'] = new \stdClass; $GLOBALS['dyn']->{'a b'} = [new \stdClass]; eval('namespace Ev; function made(): int { return 3; } class Made { public function x(): ?int { return 1; } }'); spl_autoload_register(function (string $c): void {}); register_shutdown_function(fn(): int => 1); set_error_handler(fn(int $no, string $s): bool => true);
ob_end_clean(); gc_collect_cycles(); fwrite(STDOUT, "ready\n"); while (true) { sleep(3600); }
