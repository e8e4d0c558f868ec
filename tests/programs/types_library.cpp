// Built as a shared library: classes with key functions here, and one that no header names.
#include "types_library.h"
namespace library {
Shape::~Shape() {}
int Shape::sides() { return 0; }
int Circle::sides() { return 1; }
struct Square : Shape { int sides() override { return 4; } };
namespace { struct Secret { virtual ~Secret() {} long s = 2; }; }
Shape *shape() { return new Square; }
void *hidden() { return new Secret; }
}
