// Classes of a shared library.
#pragma once
namespace library {
struct Shape { virtual ~Shape(); virtual int sides(); long s = 1; };
struct Circle : Shape { int sides() override; };
Shape *shape();
void *hidden();
}
