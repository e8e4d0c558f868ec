// Two variables of a module refer to the same sessions. The argument is their number.
class Session {
  constructor(number) {
    this.number = number;
    this.data = Buffer.alloc(500).toString('latin1') + number;
  }
}
const byId = new Map(), recent = [];
for (let number = 0; number < Number(process.argv[2]); number++) {
  const session = new Session(number);
  byId.set(number, session);
  recent.push(session);
}
global.gc();
console.log('ready');
setInterval(() => { if (recent.length < byId.size) console.log(byId); }, 1e9);
