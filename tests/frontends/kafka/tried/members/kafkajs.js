// A member by KafkaJS: BOOTSTRAP TOPIC GROUP NAME.
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, topic, groupId, clientId] = process.argv.slice(2)
const kafka = new Kafka({
  clientId, brokers: bootstrap.split(','), logLevel: logLevel.ERROR, retry: { retries: 20, initialRetryTime: 200, maxRetryTime: 2000 },
})
const consumer = kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 1500, rebalanceTimeout: 10000 })
consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
  console.log('assigned ' + (payload.memberAssignment[topic] || []).join(','))
})

async function main() {
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, heartbeat }) => {
      for (const one of batch.messages) console.log('record', batch.partition, one.offset)
      const offset = String(BigInt(batch.lastOffset()) + 1n)
      await consumer.commitOffsets([{ topic, partition: batch.partition, offset }])
      console.log('committed')
      await heartbeat()
    },
  })
  process.stdin.on('end', async () => {
    await consumer.disconnect()
    console.log('closed')
    process.exit(0)
  })
  process.stdin.resume()
}

main().catch((error) => { console.log('#', error.message); process.exit(1) })
