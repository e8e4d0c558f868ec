# For each kind of collection of classes without a name, texts that only methods, variables or constants of these classes refer to. It prints
# "ready", and waits.
COUNT, BYTES = 500, 4000

def text(kind, number)
  "#{kind} #{number}".ljust(BYTES, "x")
end

def fill(kind)
  COUNT.times { |number| yield number, text(kind, number) }
end

class Template; CACHE = {}; end
class Plugin; ALL = []; end
class Row; TYPES = {}; end
class Patch; MODULES = []; end
class Hooks; TABLE = {}; end
class Page; BY_PATH = {}; end
class Model; @generated = []; def self.generated; @generated; end; end
class Engine
  Entry = Struct.new(:klass, :time)
  def initialize; @entries = {}; end
  attr_reader :entries
end
ENGINE = Engine.new
$extended, $objects, $strings, $callable, $pairs = [], [], [], [], []

fill("method") { |number, body| Template::CACHE[number] = Class.new { define_method(:render) { body } } }
fill("constant") { |number, body| Page::BY_PATH["/#{number}"] = Class.new { const_set(:BODY, body) } }
fill("variable") { |_, body| Model.generated << Class.new { @body = body } }
fill("instance") { |_, body| $objects << Class.new { define_method(:get) { body } }.new }
fill("module") { |_, body| $extended << Object.new.extend(Module.new { define_method(:run) { body } }) }
fill("singleton") { |_, body| Plugin::ALL << Object.new.tap { |one| one.singleton_class.send(:define_method, :start) { body } } }
fill("string") { |number, body| $strings << "text #{number}".tap { |one| one.define_singleton_method(:more) { body } } }
fill("class method") { |_, body| $callable << Class.new { define_singleton_method(:call) { body } } }
fill("struct") { |number, body| Row::TYPES[number] = Struct.new(:a, :b) { define_method(:describe) { body } } }
fill("refinement") { |_, body| Patch::MODULES << Module.new { refine(String) { define_method(:fancy) { body } } } }
fill("lambda") { |number, body| Hooks::TABLE[number] = -> { body } }
fill("entry") { |number, body| ENGINE.entries[number] = Engine::Entry.new(Class.new { define_method(:evaluate) { body } }, number) }
fill("pair") { |number, body| $pairs << [Class.new { define_method(:apply) { body } }, number] }

def generate
  local = []
  fill("local") { |_, body| local << Class.new { define_method(:visit) { body } } }
  GC.start
  puts "ready"
  $stdout.flush
  sleep
  local
end

# Nothing but a constant refers to each of these classes, so that they have names.
fill("named") { |number, body| Object.const_set("Named#{number}", Class.new { define_method(:own) { body } }) }
generate
