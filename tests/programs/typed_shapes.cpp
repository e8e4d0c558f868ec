/* A program that prints the true type of each of its blocks, as typed_truth.c does: virtual classes, raw pointers, std::vector, map,
 * unordered_map, list and shared_ptr.
 *
 *   typed_shapes OBJECTS SEED */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>
static bool leak;
template <class T> T *told(T *p, const char *t) {
    printf("%lx %s %s\n", (unsigned long)(void *)p, leak ? "leaked" : "reachable", t);
    return p;
}
struct Point {
    double x, y;
    struct Layer *layer;
};
struct Layer {
    int id;
    Layer *parent;
    Point *origin;
};
struct Shape {
    virtual ~Shape() {
    }
    virtual double area() = 0;
    Layer *layer;
};
struct Square : Shape {
    double side;
    double area() override {
        return side * side;
    }
};
struct Poly : Shape {
    Point **points;
    int n;
    double area() override {
        return n;
    }
};
struct Node {
    Node *left, *right;
    Shape *shape;
    long key;
};
struct Msg {
    long id;
    char *body;
    Msg *next;
};
struct Ring {
    Msg *head;
    Ring *peer;
    long n;
};
static unsigned long s = 1234567;
static unsigned long rnd() {
    s = s * 6364136223846793005ul + 1442695040888963407ul;
    return s >> 33;
}
static Node *root;
static std::vector<Shape *> shapes;
static std::map<int, Layer *> layers;
static std::unordered_map<std::string, std::shared_ptr<Ring>> rings;
static std::list<Msg *> msgs;
static Ring *all;
static Layer *layer() {
    Layer *l = told(new Layer{}, "Layer");
    l->id = rnd() % 1000;
    l->origin = told(new Point{}, "Point");
    l->origin->x = 3.5;
    l->origin->layer = l;
    return l;
}
static Shape *shape(Layer *l) {
    if (rnd() % 2) {
        Square *q = told(new Square, "Square");
        q->layer = l;
        q->side = 2.5;
        return q;
    }
    Poly *p = told(new Poly, "Poly");
    p->layer = l;
    p->n = 2 + rnd() % 4;
    p->points = told(new Point *[p->n], "Point *[]");
    for (int i = 0; i < p->n; i++) {
        p->points[i] = told(new Point{}, "Point");
        p->points[i]->layer = l;
        p->points[i]->x = i + .25;
    }
    return p;
}
static Msg *msg() {
    Msg *m = told(new Msg{}, "Msg");
    m->id = rnd() % 100000;
    m->body = told((char *)malloc(30), "char");
    memset(m->body, 'b', 29);
    m->body[29] = 0;
    return m;
}
static Ring *ring() {
    Ring *r = told(new Ring{}, "Ring");
    r->head = msg();
    r->head->next = msg();
    r->n = 2;
    return r;
}
int main(int c, char **v) {
    long n = c > 1 ? atol(v[1]) : 1000;
    s += c > 2 ? atol(v[2]) : 0;
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    Layer *l = nullptr;
    for (long i = 0; i < n; i++) {
        if (i % 10 == 0) {
            Layer *k = layer();
            k->parent = l;
            l = k;
            layers[i] = k;
        }
        Shape *sh = shape(l);
        shapes.push_back(sh);
        Node *nd = told(new Node{}, "Node");
        nd->key = rnd();
        nd->shape = sh;
        Node **p = &root;
        while (*p)
            p = nd->key < (*p)->key ? &(*p)->left : &(*p)->right;
        *p = nd;
        if (i % 4 == 0)
            msgs.push_back(msg());
        if (i % 6 == 0) {
            rings["ring-number-" + std::to_string(i)] = std::shared_ptr<Ring>(ring());
            Ring *q = ring();
            q->peer = all;
            all = q;
        }
        if (i % 7 == 0) {
            leak = true;
            switch (rnd() % 4) {
            case 0: {
                Node *x = told(new Node{}, "Node");
                x->shape = shape(l);
                x->key = rnd();
            } break;
            case 1:
                ring();
                break;
            case 2:
                shape(layer());
                break;
            default: {
                Msg *m = msg();
                m->next = msg();
            }
            }
            leak = false;
        }
    }
    char wipe[4096];
    memset(wipe, 0, sizeof wipe);
    __asm__ volatile("" ::"r"(wipe), "r"(&root), "r"(&all), "r"(&l) : "memory");
    l = nullptr;
    puts("ready");
    fflush(stdout);
    pause();
}
